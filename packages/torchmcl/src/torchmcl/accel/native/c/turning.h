/* Transposition of rows and columns. Included by step.h. */

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE 1
#endif
#endif

typedef float four __attribute__((vector_size(16), aligned(4)));

/* to[c * stride + r] = rows[r][at + c] for 4 rows and columns. */
ALWAYS void turn_four(float *to, int64_t stride, const float *const *rows, int64_t at) {
#if defined(HAS_SHUFFLE)
    const four a = *(const four *)(rows[0] + at), b = *(const four *)(rows[1] + at);
    const four c = *(const four *)(rows[2] + at), d = *(const four *)(rows[3] + at);
    const four first = __builtin_shufflevector(a, b, 0, 4, 1, 5), second = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four third = __builtin_shufflevector(a, b, 2, 6, 3, 7), fourth = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)to = __builtin_shufflevector(first, second, 0, 1, 4, 5);
    *(four *)(to + stride) = __builtin_shufflevector(first, second, 2, 3, 6, 7);
    *(four *)(to + 2 * stride) = __builtin_shufflevector(third, fourth, 0, 1, 4, 5);
    *(four *)(to + 3 * stride) = __builtin_shufflevector(third, fourth, 2, 3, 6, 7);
#else
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) to[c * stride + r] = rows[r][at + c];
#endif
}

/* The same for 4 rows and any number of columns. */
ALWAYS void turn_rows(float *to, int64_t stride, const float *const *rows, int64_t n_columns) {
    int64_t c = 0;
    for (; c + 4 <= n_columns; c += 4) turn_four(to + c * stride, stride, rows, c);
    for (; c < n_columns; c++)
        for (int r = 0; r < 4; r++) to[c * stride + r] = rows[r][c];
}

/* The same for a matrix: to[c * to_stride + r] = from[r * stride + c]. */
static void turn(float *to, int64_t to_stride, const float *from, int64_t stride, int64_t n_rows, int64_t n_columns) {
    int64_t r = 0;
    for (; r + 4 <= n_rows; r += 4, from += 4 * stride) {
        const float *const rows[4] = {from, from + stride, from + 2 * stride, from + 3 * stride};
        turn_rows(to + r, to_stride, rows, n_columns);
    }
    for (; r < n_rows; r++, from += stride)
        for (int64_t c = 0; c < n_columns; c++) to[c * to_stride + r] = from[c];
}

/* to[c * WIDTH + j] = from[numbers[j] * n_columns + c] for n rows, and 0 for the padding of the last vectors. */
static void gather(float *to, const float *from, const int64_t *numbers, int64_t n, int64_t width, int64_t n_columns) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *rows[4];
        for (int r = 0; r < 4; r++) rows[r] = from + numbers[j + r] * n_columns;
        turn_rows(to + j, WIDTH, rows, n_columns);
    }
    for (; j < width; j++)
        for (int64_t c = 0; c < n_columns; c++) to[c * WIDTH + j] = j < n ? from[numbers[j] * n_columns + c] : 0;
}
