/* Powers of two, of single numbers for loops that the compiler turns into vectors, and of vectors. Included by step.h. */

/* 2^x for |x| <= 126 to a few units in the last place: the nearest integer becomes the exponent, the rest goes through a
   polynomial. NaN for NaN. */
#define POWERS_OF_TWO(name, number, integer)                                                   \
    ALWAYS number name(number x) {                                                             \
        union { number value; integer bits; } whole, scale;                                    \
        whole.value = x + 12582912.0f; /* the nearest integer, in the lowest bits */           \
        const number rest = x - (whole.value - 12582912.0f);                                   \
        number value = rest * 1.5252734e-5f + 1.5403530e-4f;                                   \
        value = value * rest + 1.3333558e-3f;                                                  \
        value = value * rest + 9.6181291e-3f;                                                  \
        value = value * rest + 5.5504109e-2f;                                                  \
        value = value * rest + 2.4022651e-1f;                                                  \
        value = value * rest + 6.9314718e-1f;                                                  \
        value = value * rest + 1.0f;                                                           \
        scale.bits = (whole.bits + 127) << 23;                                                 \
        return value * scale.value;                                                            \
    }

POWERS_OF_TWO(inner_power, float, unsigned)
POWERS_OF_TWO(inner_powers, vec, ivec)

/* 2^x for x <= 0; 0 below 2^-126. */
ALWAYS float power_of_two(float x) { return x < -126.0f ? 0.0f : inner_power(x < -126.0f ? -126.0f : x); }

/* 2^x for x <= 126; 2^-126 below that. */
ALWAYS vec powers_of_two(vec x) {
    const ivec low = x < -126.0f;
    return inner_powers((vec)(((ivec)x & ~low) | ((ivec)((vec){0} - 126.0f) & low)));
}

/* 2^x for all x, that of the bound beyond 126. */
ALWAYS vec bounded_powers(vec x) {
    const ivec high = x > 126.0f;
    return powers_of_two((vec)(((ivec)x & ~high) | ((ivec)((vec){0} + 126.0f) & high)));
}
