// Products and norms of a few rows in float32, as treespec/hf/cpu/native.py compiles them for the machine at hand.
//
// y = x w^T + bias.
// A product of 1 to 64 rows is limited by reading the weights. They are packed in panels of COLUMNS outputs,
// [panel][k][COLUMNS], so that they are read once, in order, and well ahead. Weights are float32, or 8-bit integers
// with a factor per output, which stand behind them in each panel. More rows than fit into the registers are cut into
// tiles, and the inputs into blocks: all tiles multiply a block while it is in the first cache, and each fetches its
// share of the next one, so that the memory works as long as the arithmetic does. Every output is one chain of fused
// multiply-adds over k = 0, 1, ..., however many rows, threads, tiles or blocks there are: rows never change each
// other's bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif

// Vectors of the processor's own width: the compiler takes wider ones apart, number by number.
#if defined(__AVX512F__)
constexpr int LANES = 16, WIDTH = 2, MOST_ROWS = 12;  // 24 of 32 registers hold sums.
#elif defined(__AVX__)
constexpr int LANES = 8, WIDTH = 2, MOST_ROWS = 6;  // 12 of 16
#elif defined(__aarch64__)
constexpr int LANES = 4, WIDTH = 4, MOST_ROWS = 6;  // 24 of 32
#else
constexpr int LANES = 4, WIDTH = 2, MOST_ROWS = 6;
#endif
constexpr int64_t COLUMNS = LANES * WIDTH, BLOCK = 192, LINE = 64, AHEAD = 6144;
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1)));

static inline Vector load(const float* weights) { return *(const Vector*)weights; }
static inline Vector load(const int8_t* weights) {
#if defined(__AVX512F__)  // GCC before 13 makes ten instructions of the conversion below.
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)weights)));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)weights)));
#else
  typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
  return __builtin_convertvector(__builtin_convertvector(*(const Bytes*)weights, Integers), Vector);
#endif
}

// Adds the products of `size` inputs to `sums` [ROWS, COLUMNS]. While it runs it fetches STEPS lines per input from
// `ahead` on, `stride` bytes apart.
template <typename Weight, int ROWS, int STEPS>
static void tile(const float* __restrict x, int64_t num_inputs, int64_t size, const Weight* __restrict w,
                 float* __restrict sums, bool is_first, const char* ahead, int64_t stride) {
  Vector own[ROWS][WIDTH];
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) own[row][c] = is_first ? Vector{} : load(sums + row * COLUMNS + LANES * c);
  for (int64_t k = 0; k < size; k++, w += COLUMNS) {
    for (int step = 0; step < STEPS; step++, ahead += stride) __builtin_prefetch(ahead);
    Vector column[WIDTH];
    for (int c = 0; c < WIDTH; c++) column[c] = load(w + LANES * c);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++)
      for (int c = 0; c < WIDTH; c++) own[row][c] += x[row * num_inputs + k] * column[c];
  }
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) *(Vector*)(sums + row * COLUMNS + LANES * c) = own[row][c];
}

template <typename Weight>
using Tile = void (*)(const float*, int64_t, int64_t, const Weight*, float*, bool, const char*, int64_t);

template <typename Weight, int STEPS, int... COUNTS>
static Tile<Weight> tile_of(int64_t num_rows, std::integer_sequence<int, COUNTS...>) {
  static const Tile<Weight> tiles[] = {tile<Weight, COUNTS + 1, STEPS>...};
  return tiles[num_rows - 1];
}

template <typename Weight>
static void linear(const float* x, const char* packed, const float* bias, float* y, int64_t num_rows,
                   int64_t num_inputs, int64_t num_outputs, int32_t num_threads) {
  if (num_rows == 0) return;
  constexpr bool IS_SCALED = sizeof(Weight) == 1;
  constexpr int64_t INPUT_BYTES = COLUMNS * sizeof(Weight), LINES = INPUT_BYTES > LINE ? INPUT_BYTES / LINE : 1;
  const auto counts = std::make_integer_sequence<int, MOST_ROWS>();
  const int64_t num_panels = (num_outputs + COLUMNS - 1) / COLUMNS, num_tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t height = (num_rows + num_tiles - 1) / num_tiles, bytes = num_inputs * INPUT_BYTES;
  const int64_t block = num_tiles == 1 ? num_inputs : BLOCK;
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> sums(num_rows * COLUMNS);
#pragma omp for schedule(static)
    for (int64_t panel = 0; panel < num_panels; panel++) {
      const int64_t start = panel * COLUMNS, width = std::min<int64_t>(num_outputs - start, COLUMNS);
      const char* weights = packed + panel * (bytes + (IS_SCALED ? COLUMNS * sizeof(float) : 0));
      const float* scales = (const float*)(weights + bytes);
      for (int64_t k = 0; k < num_inputs; k += block) {
        const int64_t size = std::min(num_inputs - k, block);
        const char* here = weights + k * INPUT_BYTES;
        for (int64_t top = 0; top < num_rows; top += height) {
          const int64_t count = std::min(num_rows - top, height), share = INPUT_BYTES / num_tiles;
          const char* ahead = num_tiles == 1 ? here + AHEAD : here + BLOCK * INPUT_BYTES + top / height * size * share;
          const Tile<Weight> run = num_tiles == 1 ? tile_of<Weight, LINES>(count, counts) : tile_of<Weight, 1>(count, counts);
          run(x + top * num_inputs + k, num_inputs, size, (const Weight*)here, sums.data() + top * COLUMNS, k == 0,
              ahead, num_tiles == 1 ? INPUT_BYTES / LINES : share);
        }
      }
      for (int64_t row = 0; row < num_rows; row++)
        for (int64_t c = 0; c < width; c++) {
          const float sum = IS_SCALED ? sums[row * COLUMNS + c] * scales[c] : sums[row * COLUMNS + c];
          y[row * num_outputs + start + c] = sum + (bias ? bias[start + c] : 0.0f);
        }
    }
  }
}

// x [num_rows, num_inputs], packed [panels, num_inputs, COLUMNS], bias [num_outputs] or null, y [num_rows, num_outputs].
#define ARGUMENTS const float *x, const char *packed, const float *bias, float *y, int64_t n, int64_t k, int64_t m, int32_t t
extern "C" int64_t treespec_columns() { return COLUMNS; }
extern "C" void treespec_linear(ARGUMENTS) { linear<float>(x, packed, bias, y, n, k, m, t); }
extern "C" void treespec_linear_int8(ARGUMENTS) { linear<int8_t>(x, packed, bias, y, n, k, m, t); }

// y = weight x / sqrt(mean(x^2) + eps), row by row; x and y are [num_rows, size].
extern "C" void treespec_rms_norm(const float* x, const float* weight, float* y, int64_t num_rows, int64_t size,
                                  float eps) {
  for (int64_t row = 0; row < num_rows; row++, x += size, y += size) {
    Vector squares = Vector{};
    int64_t k = 0;
    for (; k + LANES <= size; k += LANES) squares += load(x + k) * load(x + k);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += squares[lane];
    for (; k < size; k++) sum += x[k] * x[k];
    const float scale = 1 / std::sqrt(sum / size + eps);
    for (k = 0; k < size; k++) y[k] = weight[k] * (x[k] * scale);
  }
}
