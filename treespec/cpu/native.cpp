// Products, norms and attention of a few rows in float32 and bfloat16, as treespec/cpu/native.py compiles them for the
// machine at hand.
//
// y = x w^T + bias.
// A product of 1 to 64 rows is limited by reading the weights. They are packed in panels of COLUMNS outputs,
// [panel][k][COLUMNS], so that they are read once, in order, and well ahead. Weights are float32; bfloat16 in pairs of two
// inputs, whose x and y are bfloat16 too while sums are float32; or 8-bit integers in such pairs with a factor per output,
// which stand after them in each panel: x is rounded to 16 bits or to as many as leave sums of 32 exact, a factor per row,
// since two products of integers cost less than one of floats made from them. More rows than fit into the registers are cut into tiles, and the inputs into
// blocks: all tiles multiply a block while it is in the first cache, and each fetches its share of the next one, so that
// the memory works as long as the arithmetic does. Lines but for those of 8 bits, which come slowly, go to the second
// cache where the first one has few buffers for misses. Up to FEW_ROWS, where the memory is the slower one, nothing is
// fetched: the processor by itself reads ahead faster. Every output is one chain of fused multiply-adds over k = 0, 1, ..., however
// many rows, threads, tiles or blocks there are: rows never change each other's bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
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
constexpr int64_t COLUMNS = LANES * WIDTH, BLOCK = 192, LINE = 64;
constexpr int64_t PART = 512;  // Rows of a longer prompt: more, with their sums, leave the second cache between two panels.
// Measured on a Zen 5 and a Zen 4, whose first cache is the smaller one: how many inputs ahead one tile fetches, into which
// cache (3 is the first, 2 the second), and FEW_ROWS, of floats and of 8 bits.
#if defined(__AVX512VP2INTERSECT__)  // No Zen 4 has it.
constexpr int64_t AHEAD = 64, FEW_FLOATS = 2, FEW_BYTES = 0;
constexpr int CACHE = 3;
#else
constexpr int64_t AHEAD = BLOCK, FEW_FLOATS = 5, FEW_BYTES = 3;
constexpr int CACHE = 2;
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));  // Rows may begin at any float.
typedef int8_t Bytes __attribute__((vector_size(2 * LANES), aligned(1)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t Bfloat16;
typedef uint32_t Pair;  // Two bfloat16 or int16 numbers, the first one in the lower half.
struct BytePair {
  int8_t first, second;
};
constexpr float ROUNDS = 12582912.0f;  // Added to a small number it leaves its nearest integer in the last bits.

static inline Vector load(const float* weights) { return *(const Vector*)weights; }
static inline Shorts load(const BytePair* weights) {
#if defined(__AVX512BW__)  // GCC before 13 makes ten instructions of the conversion below.
  return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)weights));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)weights));
#else
  return __builtin_convertvector(*(const Bytes*)weights, Shorts);
#endif
}

static inline Words load(const Pair* weights) { return *(const Words*)weights; }

static inline void add(Vector& sum, float x, Vector column) { sum += x * column; }
static inline void add(Vector& sum, Pair x, Words column) {
#if defined(__AVX512BF16__)
  sum = (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)column);
#else
  const Words both = Words{} + x;
  sum += (Vector)(both << 16) * (Vector)(column << 16);
  sum += (Vector)(both & 0xffff0000u) * (Vector)(column & 0xffff0000u);
#endif
}

static inline void add(Vector& sum, Pair x, Shorts column) {  // The bits of sums are integers.
#if defined(__AVX512VNNI__)
  sum = (Vector)_mm512_dpwssd_epi32((__m512i)sum, _mm512_set1_epi32(x), (__m512i)column);
#elif defined(__AVX512BW__)
  sum = (Vector)_mm512_add_epi32((__m512i)sum, _mm512_madd_epi16(_mm512_set1_epi32(x), (__m512i)column));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  sum = (Vector)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(_mm256_set1_epi32(x), (__m256i)column));
#else
  const Integers both = (Integers)(Words{} + x), pairs = (Integers)column;
  sum = (Vector)((Integers)sum + (both << 16 >> 16) * (pairs << 16 >> 16) + (both >> 16) * (pairs >> 16));
#endif
}

static inline float widened(float number) { return number; }
static inline float widened(Bfloat16 number) {
  const uint32_t bits = (uint32_t)number << 16;
  float wide;
  return std::memcpy(&wide, &bits, 4), wide;
}

template <typename Number>
static inline Number narrowed(float number) {
  if constexpr (std::is_same_v<Number, float>) return number;
  uint32_t bits;
  std::memcpy(&bits, &number, 4);
  // To the nearest, ties to even; a NaN stays one.
  return number != number ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Rows of a tile; pairs need registers for what they are made of.
template <typename Weight>
constexpr int TALLEST = std::is_same_v<Weight, Pair> ? MOST_ROWS * 2 / 3 : MOST_ROWS;

template <typename Weight>
using Input = std::conditional_t<std::is_same_v<Weight, float>, float, Pair>;

// Adds the products of `size` inputs to `sums` [ROWS, COLUMNS]: x has a row every `row_step` numbers and an input every
// `step`, w an input every `w_step`; only the first NUM_VECTORS of a row's sums are made. While it runs it fetches LINES lines of every `share` bytes from `ahead` on.
template <typename Weight, int ROWS, int LINES, int NUM_VECTORS = WIDTH>
static void tile(const Input<Weight>* __restrict x, int64_t row_step, int64_t step, int64_t size, const Weight* __restrict w,
                 int64_t w_step, float* __restrict sums, bool is_first, const char* ahead, int64_t share) {
  Vector own[ROWS][NUM_VECTORS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int c = 0; c < NUM_VECTORS; c++) own[row][c] = is_first ? Vector{} : load(sums + row * COLUMNS + LANES * c);
#pragma GCC unroll 2
  for (int64_t k = 0; k < size; k++, x += step, w += w_step, ahead += share) {
    for (int line = 0; line < LINES; line++) __builtin_prefetch(ahead + line * LINE, 0, std::is_same_v<Weight, BytePair> ? 3 : CACHE);
    decltype(load(w)) column[NUM_VECTORS];
    for (int c = 0; c < NUM_VECTORS; c++) column[c] = load(w + LANES * c);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++)
      for (int c = 0; c < NUM_VECTORS; c++) add(own[row][c], x[row * row_step], column[c]);
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int c = 0; c < NUM_VECTORS; c++) *(Vector*)(sums + row * COLUMNS + LANES * c) = own[row][c];
}

static inline int32_t as_integer(float number) {
  int32_t bits;
  return std::memcpy(&bits, &number, 4), bits;
}

// Integers of at most `limit` for the numbers of a row, and the factor that they are to be multiplied by.
static float rounded(const float* x, int64_t size, float limit, int16_t* y) {
  int32_t most = 0;  // As integers the bits of a NaN are above all numbers'.
  for (int64_t k = 0; k < size; k++) most = std::max(most, as_integer(x[k]) & 0x7fffffff);
  float largest;
  std::memcpy(&largest, &most, 4);
  const float scale = largest > 0 ? limit / largest : 0.0f;  // Not 0 * inf. A NaN makes the factor NaN.
  for (int64_t k = 0; k < size; k++) y[k] = (int16_t)as_integer(x[k] * scale + ROUNDS);
  return largest / limit;
}

template <typename Weight>
using Tile = decltype(&tile<Weight, 1, 0>);

template <typename Weight, int LINES, int NUM_VECTORS = WIDTH, int ROWS = TALLEST<Weight>>
static Tile<Weight> tile_of(int64_t num_rows) {
  if constexpr (ROWS > 1)
    if (num_rows < ROWS) return tile_of<Weight, LINES, NUM_VECTORS, ROWS - 1>(num_rows);
  return tile<Weight, ROWS, LINES, NUM_VECTORS>;
}

// Where weights come in pairs, `num_inputs` is the number of pairs; `factors` are of the rows of integers.
template <typename Weight, typename Number>
static void linear(const Input<Weight>* x, const char* packed, const Number* bias, Number* y, int64_t num_rows,
                   int64_t num_inputs, int64_t num_outputs, int32_t num_threads, const float* factors = nullptr) {
  if (num_rows == 0) return;
  if (const int64_t num_parts = (num_rows + PART - 1) / PART; num_parts > 1) {
    const int64_t part = (num_rows + num_parts - 1) / num_parts;
    for (int64_t top = 0; top < num_rows; top += part)
      linear<Weight>(x + top * num_inputs, packed, bias, y + top * num_outputs, std::min(num_rows - top, part), num_inputs,
                     num_outputs, num_threads, factors ? factors + top : nullptr);
    return;
  }
  constexpr bool IS_SCALED = std::is_same_v<Weight, BytePair>;
  constexpr int64_t FEW_ROWS = IS_SCALED ? FEW_BYTES : FEW_FLOATS;
  constexpr int64_t INPUT_BYTES = COLUMNS * sizeof(Weight), LINES = INPUT_BYTES > LINE ? INPUT_BYTES / LINE : 1;
  const int64_t num_panels = (num_outputs + COLUMNS - 1) / COLUMNS;
  const int64_t num_tiles = (num_rows + TALLEST<Weight> - 1) / TALLEST<Weight>;
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
          const char* ahead = here + (num_tiles == 1 && !IS_SCALED ? AHEAD : BLOCK) * INPUT_BYTES + top / height * size * share;
          const Tile<Weight> run = num_tiles > 1         ? tile_of<Weight, 1>(count)
                                   : num_rows > FEW_ROWS ? tile_of<Weight, LINES>(count)
                                                         : tile_of<Weight, 0>(count);
          run(x + top * num_inputs + k, num_inputs, 1, size, (const Weight*)here, COLUMNS, sums.data() + top * COLUMNS,
              k == 0, ahead, share);
        }
      }
      for (int64_t row = 0; row < num_rows; row++) {
        const float* from = sums.data() + row * COLUMNS;
        Number* to = y + row * num_outputs + start;
        int64_t c = 0;
        if constexpr (std::is_same_v<Number, float>)
          for (; c + LANES <= width; c += LANES) {
            Vector sum = load(from + c);
            if constexpr (IS_SCALED) sum = __builtin_convertvector((Integers)sum, Vector) * (load(scales + c) * factors[row]);
            *(Vector*)(to + c) = bias ? sum + load(bias + start + c) : sum;
          }
        for (; c < width; c++) {
          float sum = from[c];
          if constexpr (IS_SCALED) sum = as_integer(sum) * (scales[c] * factors[row]);
          to[c] = narrowed<Number>(sum + (bias ? widened(bias[start + c]) : 0.0f));
        }
      }
    }
  }
}

// x [num_rows, num_inputs], packed [panels, num_inputs, COLUMNS], bias [num_outputs] or null, y [num_rows, num_outputs].
#define ARGUMENTS(Number) \
  const Number *x, const char *packed, const Number *bias, Number *y, int64_t n, int64_t k, int64_t m, int32_t t
extern "C" int64_t treespec_columns() { return COLUMNS; }
extern "C" void treespec_linear(ARGUMENTS(float)) { linear<float>(x, packed, bias, y, n, k, m, t); }
extern "C" void treespec_linear_int8(ARGUMENTS(float)) {
  const float limit = std::min<int64_t>(INT16_MAX, INT32_MAX / (INT8_MAX * std::max<int64_t>(k, 1)));
  const int64_t num_pairs = (k + 1) / 2;
  static thread_local std::vector<Pair> pairs;
  static thread_local std::vector<float> factors;
  pairs.assign(n * num_pairs, 0), factors.resize(n);
  for (int64_t row = 0; row < n; row++) factors[row] = rounded(x + row * k, k, limit, (int16_t*)&pairs[row * num_pairs]);
  linear<BytePair>(pairs.data(), packed, bias, y, n, num_pairs, m, t, factors.data());
}
extern "C" void treespec_linear_bfloat16(ARGUMENTS(Bfloat16)) {
  linear<Pair>((const Pair*)x, packed, bias, y, n, k / 2, m, t);
}

// y = weight x / sqrt(mean(x^2) + eps), row by row; x and y are [num_rows, size]. Rounded, where it is, before the weight
// and after it, as transformers' norms are.
template <typename Number>
static void rms_norm(const Number* x, const Number* weight, Number* y, int64_t num_rows, int64_t size, float eps) {
  static thread_local std::vector<float> row;
  row.resize(size);
  for (int64_t n = 0; n < num_rows; n++, x += size, y += size) {
    for (int64_t k = 0; k < size; k++) row[k] = widened(x[k]);
    Vector squares = Vector{};
    int64_t k = 0;
    for (; k + LANES <= size; k += LANES) squares += load(&row[k]) * load(&row[k]);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += squares[lane];
    for (; k < size; k++) sum += row[k] * row[k];
    const float scale = 1 / std::sqrt(sum / size + eps);
    for (k = 0; k < size; k++) y[k] = narrowed<Number>(widened(weight[k]) * widened(narrowed<Number>(row[k] * scale)));
  }
}

#define NORM_ARGUMENTS(Number) const Number *x, const Number *weight, Number *y, int64_t n, int64_t size, float eps
extern "C" void treespec_rms_norm(NORM_ARGUMENTS(float)) { rms_norm(x, weight, y, n, size, eps); }
extern "C" void treespec_rms_norm_bfloat16(NORM_ARGUMENTS(Bfloat16)) { rms_norm(x, weight, y, n, size, eps); }

// exp(x) for x <= 0, to a unit or two in its last digit; below -87 it is 0, and a NaN stays one (S. Moshier, Cephes, expf).
static inline Vector exponential(Vector x) {
  const Vector safe = x < -87.0f ? Vector{} - 87.0f : x, shifted = safe * 1.44269504f + ROUNDS;
  const Vector whole = shifted - ROUNDS, rest = safe - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector power = 1.9875691500e-4f * rest + 1.3981999507e-3f;
  power = power * rest + 8.3334519073e-3f;
  power = power * rest + 4.1665795894e-2f;
  power = power * rest + 1.6666665459e-1f;
  power = power * rest + 5.0000001201e-1f;
  power = power * rest * rest + rest + 1.0f;
  const Vector scaled = (Vector)((Integers)power + ((Integers)shifted << 23));
  return x < -87.0f ? Vector{} : x == x ? scaled : x;
}

// Softmax over the slots of scale * scores [num_slots, COLUMNS] + mask, whose sums are returned and not divided by: the
// lanes are queries, so that nothing is added across a vector.
static void softmax(float* scores, float scale, const float* mask, int64_t num_slots, int num_vectors, float* sums) {
  for (int c = 0; c < num_vectors; c++) {
    Vector highest = Vector{} - INFINITY, sum = Vector{};
    for (int64_t at = LANES * c; at < num_slots * COLUMNS; at += COLUMNS) {
      const Vector score = scale * load(scores + at) + (mask ? load(mask + at) : Vector{});
      *(Vector*)(scores + at) = score;
      highest = score > highest ? score : highest;  // A NaN is not higher: it reaches the sum.
    }
    highest = highest == -INFINITY ? Vector{} : highest;  // A query that sees nothing.
    for (int64_t at = LANES * c; at < num_slots * COLUMNS; at += COLUMNS) {
      const Vector weight = exponential(load(scores + at) - highest);
      *(Vector*)(scores + at) = weight;
      sum += weight;
    }
    *(Vector*)(sums + LANES * c) = sum;
  }
}

// Rotates in place the first heads of every token, x [num_tokens, step] of heads of `size`, by the angles of its position,
// cos and sin [num_tokens, half]: the first half of the rotated numbers pairs with the second.
extern "C" void treespec_rotate(float* x, const float* cos, const float* sin, int64_t num_tokens, int64_t step,
                                int64_t num_heads, int64_t size, int64_t half) {
  for (int64_t token = 0; token < num_tokens; token++, x += step, cos += half, sin += half)
    for (int64_t head = 0; head < num_heads; head++) {
      float *first = x + head * size, *second = first + half;
      for (int64_t k = 0; k < half; k++) {
        const float a = first[k], b = second[k];
        first[k] = a * cos[k] - b * sin[k], second[k] = b * cos[k] + a * sin[k];
      }
    }
}

struct Attention {
  int64_t num_rows, num_groups, num_heads, num_nodes, num_slots, size, mask_step;
  int64_t query[3], key[3], value[3];  // Steps from row to row, head to head, token to token.
};

// States [slots, size] in float32 and their step from slot to slot: as they are, or a copy.
static std::pair<const float*, int64_t> as_float(const float* states, int64_t step, const Attention&, std::vector<float>&) {
  return {states, step};
}
static std::pair<const float*, int64_t> as_float(const Bfloat16* states, int64_t step, const Attention& s,
                                                 std::vector<float>& copy) {
  copy.resize(s.num_slots * s.size);
  for (int64_t slot = 0; slot < s.num_slots; slot++)
    for (int64_t d = 0; d < s.size; d++) copy[slot * s.size + d] = widened(states[slot * step + d]);
  return {copy.data(), s.size};
}

// Attention of few queries: q [rows, heads, nodes, size], k and v [rows, groups, slots, size], y [rows, nodes, heads,
// size]. The queries of a group's heads are taken together in panels of COLUMNS, head by head and node by node; mask,
// added to the scores, is [rows or 1, panels, slots, COLUMNS] or null. `size` is a multiple of COLUMNS, and steps of
// bfloat16 states are even.
template <typename Number>
static void attention(const Number* q, const Number* k, const Number* v, const float* mask, Number* y,
                      const Attention& s, float scale, int32_t num_threads) {
  using Weight = std::conditional_t<std::is_same_v<Number, Bfloat16>, Pair, float>;
  const int64_t num_inputs = s.size * sizeof(Number) / sizeof(Weight);
  const int64_t num_queries = s.num_heads / s.num_groups * s.num_nodes, num_panels = (num_queries + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t part = 0; part < s.num_rows * s.num_groups * num_panels; part++) {
    static thread_local std::vector<float> scores, wide;
    static thread_local std::vector<Weight> queries;
    scores.resize(s.num_slots * COLUMNS), queries.assign(num_inputs * COLUMNS, 0);
    const int64_t panel = part % num_panels, group = part / num_panels % s.num_groups, row = part / num_panels / s.num_groups;
    const int64_t first = panel * COLUMNS, count = std::min<int64_t>(num_queries - first, COLUMNS);
    const auto head = [&](int64_t query) { return group * (s.num_heads / s.num_groups) + query / s.num_nodes; };
    for (int64_t lane = 0; lane < count; lane++) {
      const int64_t query = first + lane;
      const int64_t at = row * s.query[0] + head(query) * s.query[1] + query % s.num_nodes * s.query[2];
      for (int64_t d = 0; d < num_inputs; d++) queries[d * COLUMNS + lane] = ((const Weight*)(q + at))[d];
    }
    const Weight* keys = (const Weight*)(k + row * s.key[0] + group * s.key[1]);
    const int64_t key_step = s.key[2] * sizeof(Number) / sizeof(Weight);
    for (int64_t slot = 0; slot < s.num_slots; slot += TALLEST<Weight>) {
      const int64_t height = std::min<int64_t>(s.num_slots - slot, TALLEST<Weight>);
      const Tile<Weight> run = count > LANES ? tile_of<Weight, 0>(height) : tile_of<Weight, 0, 1>(height);
      run(keys + slot * key_step, key_step, 1, num_inputs, queries.data(), COLUMNS, scores.data() + slot * COLUMNS, true,
          nullptr, 0);
    }
    float sums[COLUMNS], out[MOST_ROWS * COLUMNS];
    softmax(scores.data(), scale, mask ? mask + row * s.mask_step + panel * s.num_slots * COLUMNS : nullptr, s.num_slots,
            count > LANES ? WIDTH : 1, sums);
    const auto [values, value_step] = as_float(v + row * s.value[0] + group * s.value[1], s.value[2], s, wide);
    for (int64_t top = 0; top < count; top += MOST_ROWS)
      for (int64_t start = 0; start < s.size; start += COLUMNS) {
        const int64_t height = std::min<int64_t>(count - top, MOST_ROWS);
        tile_of<float, 0>(height)(scores.data() + top, 1, COLUMNS, s.num_slots, values + start, value_step, out, true,
                                  nullptr, 0);
        for (int64_t lane = top; lane < top + height; lane++) {
          const int64_t query = first + lane, node = query % s.num_nodes;
          Number* to = y + ((row * s.num_nodes + node) * s.num_heads + head(query)) * s.size + start;
          for (int64_t c = 0; c < COLUMNS; c++)
            to[c] = narrowed<Number>(sums[lane] == 0 ? 0.0f : out[(lane - top) * COLUMNS + c] / sums[lane]);
        }
      }
  }
}

// A mask as the attention reads it, of [num_rows, num_nodes, num_slots] that are true where a slot is seen.
extern "C" void treespec_mask(const bool* seen, float* mask, int64_t num_rows, int64_t num_nodes, int64_t num_slots,
                              int64_t num_queries) {
  const int64_t num_panels = (num_queries + COLUMNS - 1) / COLUMNS;
  for (int64_t row = 0; row < num_rows; row++, seen += num_nodes * num_slots, mask += num_panels * num_slots * COLUMNS)
    for (int64_t query = 0; query < num_queries; query++) {
      const bool* of_node = seen + query % num_nodes * num_slots;
      float* lane = mask + query / COLUMNS * num_slots * COLUMNS + query % COLUMNS;
      for (int64_t slot = 0; slot < num_slots; slot++) lane[slot * COLUMNS] = of_node[slot] ? 0.0f : -INFINITY;
    }
}

#define ATTENTION_ARGUMENTS(Number) \
  const Number *q, const Number *k, const Number *v, const float *mask, Number *y, const Attention *s, float scale, int32_t t
extern "C" void treespec_attention(ATTENTION_ARGUMENTS(float)) { attention(q, k, v, mask, y, *s, scale, t); }
extern "C" void treespec_attention_bfloat16(ATTENTION_ARGUMENTS(Bfloat16)) { attention(q, k, v, mask, y, *s, scale, t); }
