/* Parameters in the order of the products. Included by step.h. */

/* The number of floats of a model: of each layer weights [inputs][up_lanes(outputs)], then the bias; padding is 0. */
static int64_t packed_size(const Network *network) {
    int64_t n = 0;
    for (int64_t l = 0; l < network->n_layers; l++) n += (network->sizes[l] + 1) * up_lanes(network->sizes[l + 1]);
    return n;
}

static void pack(float *to, const Network *network, const float *flat) {
    memset(to, 0, (size_t)packed_size(network) * sizeof(float));
    for (int64_t l = 0; l < network->n_layers; l++) {
        const int64_t n_in = network->sizes[l], n_out = network->sizes[l + 1], stride = up_lanes(n_out);
        turn(to, stride, flat, n_in, n_out, n_in);
        memcpy(to + n_in * stride, flat + n_in * n_out, (size_t)n_out * sizeof(float));
        to += (n_in + 1) * stride, flat += (n_in + 1) * n_out;
    }
}

static void unpack(float *flat, const Network *network, const float *from) {
    for (int64_t l = 0; l < network->n_layers; l++) {
        const int64_t n_in = network->sizes[l], n_out = network->sizes[l + 1], stride = up_lanes(n_out);
        turn(flat, n_in, from, stride, n_in, n_out);
        memcpy(flat + n_in * n_out, from + n_in * stride, (size_t)n_out * sizeof(float));
        from += (n_in + 1) * stride, flat += (n_in + 1) * n_out;
    }
}

/* The weights of all layers but the first as [up_lanes(outputs)][up_lanes(inputs)], for gradients of inputs. Padding
   holds anything: the gradients of padded inputs are gated. */
static int64_t turned_size(const Network *network) {
    int64_t n = 0;
    for (int64_t l = 1; l < network->n_layers; l++) n += up_lanes(network->sizes[l]) * up_lanes(network->sizes[l + 1]);
    return n;
}

static void turn_weights(float *to, const Network *network, const float *packed) {
    for (int64_t l = 0; l < network->n_layers; l++) {
        const int64_t n_in = network->sizes[l], n_out = network->sizes[l + 1], stride = up_lanes(n_out);
        if (l) turn(to, up_lanes(n_in), packed, stride, n_in, (n_out + 3) / 4 * 4); /* four columns at once */
        to += l ? up_lanes(n_in) * stride : 0, packed += (n_in + 1) * stride;
    }
}
