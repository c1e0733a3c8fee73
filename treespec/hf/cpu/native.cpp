// Products and norms of a few rows in float32, as treespec/hf/cpu/native.py compiles them for the machine at hand.
//
// y = x w^T + bias.
// A product of 1 to 64 rows is limited by reading the weights. They are packed in panels of COLUMNS outputs,
// [panel][k][COLUMNS], so that they are read once, in order, and well ahead. Weights are float32, or 8-bit integers
// with a factor per output, which stand behind them in each panel. Every output is one chain of fused
// multiply-adds over k = 0, 1, ..., however many rows, threads or tiles there are: rows never change each other's bits.
#include <cmath>
#include <cstdint>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float Vector __attribute__((vector_size(64), aligned(4)));
typedef int8_t Bytes __attribute__((vector_size(16), aligned(1)));
constexpr int WIDTH = 2, COLUMNS = 16 * WIDTH, MOST_ROWS = 12, AHEAD = 6144;

static inline Vector load(const float* weights) { return *(const Vector*)weights; }
static inline Vector load(const int8_t* weights) {
#ifdef __AVX512F__  // GCC before 13 makes ten instructions of the conversion below.
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)weights)));
#else
  typedef int16_t Halves __attribute__((vector_size(32)));
  typedef int32_t Integers __attribute__((vector_size(64)));
  const Halves halves = __builtin_convertvector(*(const Bytes*)weights, Halves);
  return __builtin_convertvector(__builtin_convertvector(halves, Integers), Vector);
#endif
}

template <typename Weight, int ROWS, bool IS_FIRST>
static void tile(const float* __restrict x, int64_t num_inputs, const Weight* __restrict w, float* __restrict out) {
  Vector sums[ROWS][WIDTH];
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) sums[row][c] = Vector{};
  for (int64_t k = 0; k < num_inputs; k++) {
    const Weight* weights = w + k * COLUMNS;
    if (IS_FIRST)
      for (int c = 0; c < WIDTH; c++) __builtin_prefetch((const char*)(weights + 16 * c) + AHEAD);
    Vector column[WIDTH];
    for (int c = 0; c < WIDTH; c++) column[c] = load(weights + 16 * c);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++)
      for (int c = 0; c < WIDTH; c++) sums[row][c] += x[row * num_inputs + k] * column[c];
  }
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) *(Vector*)(out + row * COLUMNS + 16 * c) = sums[row][c];
}

template <typename Weight>
using Tile = void (*)(const float*, int64_t, const Weight*, float*);

template <typename Weight, bool IS_FIRST>
static const Tile<Weight> TILES[] = {
    nullptr, tile<Weight, 1, IS_FIRST>, tile<Weight, 2, IS_FIRST>, tile<Weight, 3, IS_FIRST>, tile<Weight, 4, IS_FIRST>,
    tile<Weight, 5, IS_FIRST>, tile<Weight, 6, IS_FIRST>, tile<Weight, 7, IS_FIRST>, tile<Weight, 8, IS_FIRST>,
    tile<Weight, 9, IS_FIRST>, tile<Weight, 10, IS_FIRST>, tile<Weight, 11, IS_FIRST>, tile<Weight, 12, IS_FIRST>};

template <typename Weight>
static void linear(const float* x, const char* packed, const float* bias, float* y, int64_t num_rows,
                   int64_t num_inputs, int64_t num_outputs, int32_t num_threads) {
  if (num_rows == 0) return;
  const int64_t num_panels = (num_outputs + COLUMNS - 1) / COLUMNS, num_tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t height = (num_rows + num_tiles - 1) / num_tiles, bytes = num_inputs * COLUMNS * sizeof(Weight);
  constexpr bool IS_SCALED = sizeof(Weight) == 1;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t panel = 0; panel < num_panels; panel++) {
    float out[MOST_ROWS * COLUMNS] __attribute__((aligned(64)));
    const int64_t start = panel * COLUMNS, width = num_outputs - start < COLUMNS ? num_outputs - start : COLUMNS;
    const char* weights = packed + panel * (bytes + (IS_SCALED ? COLUMNS * sizeof(float) : 0));
    const float* scales = (const float*)(weights + bytes);
    for (int64_t top = 0; top < num_rows; top += height) {
      const int64_t count = num_rows - top < height ? num_rows - top : height;
      const Tile<Weight> run = (top == 0 ? TILES<Weight, true> : TILES<Weight, false>)[count];
      run(x + top * num_inputs, num_inputs, (const Weight*)weights, out);
      for (int64_t row = 0; row < count; row++)
        for (int64_t c = 0; c < width; c++) {
          const float sum = IS_SCALED ? out[row * COLUMNS + c] * scales[c] : out[row * COLUMNS + c];
          y[(top + row) * num_outputs + start + c] = sum + (bias ? bias[start + c] : 0.0f);
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
    for (; k + 16 <= size; k += 16) squares += load(x + k) * load(x + k);
    float sum = 0;
    for (int lane = 0; lane < 16; lane++) sum += squares[lane];
    for (; k < size; k++) sum += x[k] * x[k];
    const float scale = 1 / std::sqrt(sum / size + eps);
    for (k = 0; k < size; k++) y[k] = weight[k] * (x[k] * scale);
  }
}
