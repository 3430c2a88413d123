/* Transposition of rows and columns. Included by step.h. */

#if defined(HAS_SHUFFLE)
/* Four numbers of each of LANES / 4 rows, of which every fourth is given. */
ALWAYS loose fours(const float *const *rows, int64_t at) {
#if VECTOR_BYTES == 16
    return *(const four *)(rows[0] + at);
#else
    const eight low = __builtin_shufflevector(*(const four *)(rows[0] + at), *(const four *)(rows[4] + at), 0, 1, 2, 3, 4,
                                              5, 6, 7);
#if VECTOR_BYTES == 32
    return (loose)low;
#else
    const eight high = __builtin_shufflevector(*(const four *)(rows[8] + at), *(const four *)(rows[12] + at), 0, 1, 2, 3,
                                               4, 5, 6, 7);
    return (loose)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
#endif
}

/* In each group of four lanes, those of a and b in the order of the four numbers; from 4 on they are of b. */
#if VECTOR_BYTES == 16
#define EACH_FOUR(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#elif VECTOR_BYTES == 32
#define IN_B(i) ((i) < 4 ? (i) : (i) + 4)
#define EACH_FOUR(a, b, i, j, k, l) \
    __builtin_shufflevector(a, b, IN_B(i), IN_B(j), IN_B(k), IN_B(l), IN_B(i) + 4, IN_B(j) + 4, IN_B(k) + 4, IN_B(l) + 4)
#else
#define IN_B(i) ((i) < 4 ? (i) : (i) + 12)
#define EACH_FOUR(a, b, i, j, k, l)                                                                                      \
    __builtin_shufflevector(a, b, IN_B(i), IN_B(j), IN_B(k), IN_B(l), IN_B(i) + 4, IN_B(j) + 4, IN_B(k) + 4, IN_B(l) + 4, \
                            IN_B(i) + 8, IN_B(j) + 8, IN_B(k) + 8, IN_B(l) + 8, IN_B(i) + 12, IN_B(j) + 12, IN_B(k) + 12, \
                            IN_B(l) + 12)
#endif
#endif

/* to[c * stride + r] = rows[r][at + c] for LANES rows and 4 columns. */
ALWAYS void turn_four(float *to, int64_t stride, const float *const *rows, int64_t at) {
#if defined(HAS_SHUFFLE)
    const loose a = fours(rows, at), b = fours(rows + 1, at), c = fours(rows + 2, at), d = fours(rows + 3, at);
    const loose first = EACH_FOUR(a, b, 0, 4, 1, 5), second = EACH_FOUR(c, d, 0, 4, 1, 5);
    const loose third = EACH_FOUR(a, b, 2, 6, 3, 7), fourth = EACH_FOUR(c, d, 2, 6, 3, 7);
    *(loose *)to = EACH_FOUR(first, second, 0, 1, 4, 5);
    *(loose *)(to + stride) = EACH_FOUR(first, second, 2, 3, 6, 7);
    *(loose *)(to + 2 * stride) = EACH_FOUR(third, fourth, 0, 1, 4, 5);
    *(loose *)(to + 3 * stride) = EACH_FOUR(third, fourth, 2, 3, 6, 7);
#else
    for (int r = 0; r < LANES; r++)
        for (int c = 0; c < 4; c++) to[c * stride + r] = rows[r][at + c];
#endif
}

/* The same for LANES rows and any number of columns. */
ALWAYS void turn_rows(float *to, int64_t stride, const float *const *rows, int64_t n_columns) {
    int64_t c = 0;
    for (; c + 4 <= n_columns; c += 4) turn_four(to + c * stride, stride, rows, c);
    for (; c < n_columns; c++)
        for (int r = 0; r < LANES; r++) to[c * stride + r] = rows[r][c];
}

/* The same for a matrix: to[c * to_stride + r] = from[r * stride + c]. */
static void turn(float *to, int64_t to_stride, const float *from, int64_t stride, int64_t n_rows, int64_t n_columns) {
    int64_t r = 0;
    for (; r + LANES <= n_rows; r += LANES, from += LANES * stride) {
        const float *rows[LANES];
        for (int i = 0; i < LANES; i++) rows[i] = from + i * stride;
        turn_rows(to + r, to_stride, rows, n_columns);
    }
    for (; r < n_rows; r++, from += stride)
        for (int64_t c = 0; c < n_columns; c++) to[c * to_stride + r] = from[c];
}

/* to[c * WIDTH + j] = from[numbers[j] * n_columns + c] for n rows, and 0 for the padding of the last vectors. */
static void gather(float *to, const float *from, const int64_t *numbers, int64_t n, int64_t width, int64_t n_columns) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        const float *rows[LANES];
        for (int r = 0; r < LANES; r++) rows[r] = from + numbers[j + r] * n_columns;
        turn_rows(to + j, WIDTH, rows, n_columns);
    }
    for (; j < width; j++)
        for (int64_t c = 0; c < n_columns; c++) to[c * WIDTH + j] = j < n ? from[numbers[j] * n_columns + c] : 0;
}

/* The same for rows given by their addresses. */
static void gather_rows(float *to, const float *const *rows, int64_t n, int64_t width, int64_t n_columns) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) turn_rows(to + j, WIDTH, rows + j, n_columns);
    for (; j < width; j++)
        for (int64_t c = 0; c < n_columns; c++) to[c * WIDTH + j] = j < n ? rows[j][c] : 0;
}
