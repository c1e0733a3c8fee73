// y = x w^T + bias for a few rows in float32, as treespec/hf/cpu/native.py compiles it for the machine at hand.
//
// A product of 1 to 64 rows is limited by reading the weights. They are packed in panels of COLUMNS outputs,
// [panel][k][COLUMNS], so that they are read once, in order, and well ahead. Every output is one chain of fused
// multiply-adds over k = 0, 1, ..., however many rows, threads or tiles there are: rows never change each other's bits.
#include <cstdint>

typedef float Vector __attribute__((vector_size(64), aligned(4)));
constexpr int WIDTH = 2, COLUMNS = 16 * WIDTH, MOST_ROWS = 12, AHEAD = 48;

template <int ROWS, bool IS_FIRST>
static void tile(const float* __restrict x, int64_t num_inputs, const float* __restrict w, float* __restrict out) {
  Vector sums[ROWS][WIDTH];
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) sums[row][c] = Vector{};
  for (int64_t k = 0; k < num_inputs; k++) {
    const float* weights = w + k * COLUMNS;
    if (IS_FIRST)
      for (int c = 0; c < WIDTH; c++) __builtin_prefetch(weights + AHEAD * COLUMNS + 16 * c);
    Vector column[WIDTH];
    for (int c = 0; c < WIDTH; c++) column[c] = *(const Vector*)(weights + 16 * c);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++)
      for (int c = 0; c < WIDTH; c++) sums[row][c] += x[row * num_inputs + k] * column[c];
  }
  for (int row = 0; row < ROWS; row++)
    for (int c = 0; c < WIDTH; c++) *(Vector*)(out + row * COLUMNS + 16 * c) = sums[row][c];
}

typedef void (*Tile)(const float*, int64_t, const float*, float*);
#define TILES(is_first)                                                                                       \
  {                                                                                                           \
    nullptr, tile<1, is_first>, tile<2, is_first>, tile<3, is_first>, tile<4, is_first>, tile<5, is_first>,   \
        tile<6, is_first>, tile<7, is_first>, tile<8, is_first>, tile<9, is_first>, tile<10, is_first>,       \
        tile<11, is_first>, tile<12, is_first>                                                                \
  }
static const Tile FIRST[] = TILES(true), LATER[] = TILES(false);

extern "C" int64_t treespec_columns() { return COLUMNS; }

// x [num_rows, num_inputs], packed [panels, num_inputs, COLUMNS], bias [num_outputs] or null, y [num_rows, num_outputs].
extern "C" void treespec_linear(const float* x, const float* packed, const float* bias, float* y, int64_t num_rows,
                                int64_t num_inputs, int64_t num_outputs, int32_t num_threads) {
  if (num_rows == 0) return;
  const int64_t num_panels = (num_outputs + COLUMNS - 1) / COLUMNS, num_tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t height = (num_rows + num_tiles - 1) / num_tiles;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t panel = 0; panel < num_panels; panel++) {
    float out[MOST_ROWS * COLUMNS] __attribute__((aligned(64)));
    const int64_t start = panel * COLUMNS, width = num_outputs - start < COLUMNS ? num_outputs - start : COLUMNS;
    const float* weights = packed + start * num_inputs;
    for (int64_t top = 0; top < num_rows; top += height) {
      const int64_t count = num_rows - top < height ? num_rows - top : height;
      (top == 0 ? FIRST : LATER)[count](x + top * num_inputs, num_inputs, weights, out);
      for (int64_t row = 0; row < count; row++)
        for (int64_t c = 0; c < width; c++)
          y[(top + row) * num_outputs + start + c] = out[row * COLUMNS + c] + (bias ? bias[start + c] : 0.0f);
    }
  }
}
