/* Arguments of the compiled functions. Python declares the same structures, field by field: `torchmcl_fleet.native`, and
   the caller in torchmcl-tables. */

#ifndef TORCHMCL_NATIVE_H
#define TORCHMCL_NATIVE_H

#include <stdint.h>

/* The shape of the networks. */
typedef struct {
    int64_t n_layers;
    const int64_t *sizes;       /* features of the inputs and of the outputs of each layer, n_layers + 1 numbers */
    int64_t n_hypotheses;       /* of the last layer, followed by as many score logits, if any */
    int64_t n_dims;             /* of a hypothesis */
    int64_t n_targets;          /* of a row */
    int64_t absolute;           /* the cost sums absolute differences; 0: their squares */
    int64_t has_scores;
    int64_t detach_scores;      /* the score loss stops at the last layer */
    int64_t n_given;            /* ordinary columns of the inputs */
    int64_t n_runs;             /* cumulative columns: each run is 1 up to a position, then one value, then 0 */
    const int64_t *run_lengths; /* columns of each run */
    int64_t is_mixture;         /* logits and raw scales follow the hypotheses; the loss scores their mixture */
    float crps;                 /* weight of the continuous ranked probability score beside the likelihood */
    float min_scale;            /* added to softplus of the raw scales */
} Network;

/* The rows of all sets. */
typedef struct {
    int64_t n_set_rows;
    const float *inputs;  /* [sets, n_set_rows, n_given] */
    const int32_t *lower; /* [sets, n_set_rows, n_runs]: the row of the table of sums below the position of each run */
    const float *between; /* [sets, n_set_rows, n_runs]: the fraction of the way to the next row of that table */
    const float *targets; /* [sets, n_set_rows, n_targets, n_dims] */
    const float *counts;  /* [sets, n_set_rows]: the weight of each row; null for equal weights */
} Rows;

/* One step of some models. */
typedef struct {
    int64_t n_models;
    int64_t n_parameters;
    const float *flat;             /* [models, parameters]: of each layer the weight [out, in], then the bias */
    float *gradient;               /* like flat, overwritten; null: losses only */
    const int64_t *set_of_model;   /* [models] */
    const float *temperature;      /* [models]: weights are soft if positive, else hard */
    const float *epsilon;          /* [models]: the total weight of all but the winner, for hard weights */
    float *loss;                   /* [models], written */
    int64_t first;                 /* the first row of the batch, if `order` is null */
    int64_t n_rows;                /* of the batch */
    const int64_t *order;          /* [orders, order_stride], rows of the batch; null: consecutive rows */
    const int64_t *order_of_model; /* [models] */
    int64_t order_stride;
    float score_weight;
    float *scratch; /* `scratch_size` floats, aligned to 64 bytes */
} Batch;

/* The step of one target for each row, given hypotheses and score logits. */
typedef struct {
    int64_t first; /* of the rows to compute, a multiple of `one_target_rows`, and the end */
    int64_t last;
    int64_t n_rows; /* of the batch, over which losses are averaged */
    int64_t n_hypotheses;
    int64_t n_dims;
    float temperature;       /* weights are soft if positive, else hard */
    float epsilon;           /* the total weight of all but the winner, for hard weights */
    const float *hypotheses; /* [rows, hypotheses, dims] */
    const float *targets;    /* [rows, dims] */
    const float *logits;     /* [rows, hypotheses], or null */
    float *cost;             /* [rows, hypotheses], written */
    float *weights;          /* [rows, hypotheses], written */
    int32_t *winners;        /* [rows], written */
    double *losses;          /* [rows / one_target_rows, 2], written: of the assignment and of the scores, to be summed */
    float *to_hypotheses;    /* the gradients, written, or null */
    float *to_logits;
    float *scratch; /* `one_target_scratch` floats, aligned to 64 bytes */
} OneTarget;

/* Adam with decoupled weight decay. */
typedef struct {
    int64_t n_models;
    int64_t n_parameters;
    float *flat; /* [models, parameters], as are the next three */
    const float *gradient;
    float *mean;
    float *square;
    const float *n_steps; /* [models], including this step */
    const float *rate;    /* [models] */
    const float *decay;   /* [models], or null */
    float beta1;
    float beta2;
    float epsilon;
} Adam;

/* Successive batches of some models in successive epochs, with a step of Adam after each. `Batch` and `Adam` describe all
   models in the first epoch; temperatures with epsilons [epochs, 2, models], orders and rates follow epoch by epoch. */
typedef struct {
    int64_t first; /* of the models to train, and the end */
    int64_t last;
    int64_t n_epochs;
    int64_t n_batches;
    int64_t n_ordered;     /* entries of the orders of an epoch */
    const int64_t *bounds; /* [n_batches + 1], the first row of each batch, and the end of the last */
    const uint8_t *active; /* [models]: whether it is trained; others have losses of 0 */
    float *n_steps;        /* [models], incremented */
    float *losses;         /* [n_epochs, n_batches, models], written */
} Epochs;

/* The kernels of mixture networks for rows of the first set; `Network` and `Rows` hold the rest. */
typedef struct {
    int64_t first; /* of the rows to compute, and the end */
    int64_t last;
    int64_t n_models;
    int64_t n_parameters;
    const float *flat; /* [models, parameters] */
    double *values;    /* [rows, models, hypotheses, dims], written, and so are the next two */
    double *shares;    /* [rows, models, hypotheses], summing to 1 */
    double *widths;    /* [rows, models, hypotheses, dims], or null */
    float *scratch;    /* `forward_scratch` floats, aligned to 64 bytes */
} Forward;

/* Queries of mixtures of normal kernels on the line, one per row. */
typedef struct {
    int64_t n_rows;
    int64_t n_kernels;
    int64_t is_double;   /* of the next three; 0: single precision */
    const void *centers; /* [rows, kernels] */
    const void *weights; /* [rows, kernels] */
    const void *widths;  /* [rows, kernels] */
    const double *given; /* [rows]: the mass of a set, or the value above which the mass is computed */
    double fill;         /* gaps that are at least this deep are closed: lowest density by that of the lower peak */
    int64_t n_columns;   /* number of points, or maximum number of pieces */
    double *first;       /* [rows, columns], written: points, lower ends, or [rows]: masses above the values */
    double *second;      /* [rows, columns], written: masses of the points, upper ends */
    double *third;       /* written: deviations of the points [rows, columns], depths of the deepest gap [rows] */
    int64_t *counts;     /* [rows], written: pieces */
    float *scratch;      /* aligned to 64 bytes */
} Line;

/* Mixtures on the line, of which a share of the probability at each end is left out. */
typedef struct {
    int64_t n_rows;
    int64_t n_kernels;
    double share;          /* below 1/2 */
    const double *values;  /* [rows, kernels] */
    const double *weights; /* [rows, kernels] */
    double *kept;          /* [rows, kernels], written: weights that sum to 1 */
    int64_t *order;        /* [kernels], scratch memory */
} Trim;

/* The normal distribution function on cells, as cubics of the place in a cell, and exp(-z^2 / 2) where it begins. */
#define NORMAL_REACH 8.0
#define NORMAL_NODES 64.0 /* per width: errors are below 2e-10 */
#define NORMAL_SIZE 1024
extern double normal_table[NORMAL_SIZE][5];

/* A node of a tree: a row goes to `child`, or to the node after it if its column is above the threshold. A leaf is its
   own child and has a threshold that nothing exceeds. */
typedef struct {
    float threshold;
    int32_t column;
    int32_t child;
} Node;

/* The trees of a forest, and the rows to evaluate. */
typedef struct {
    int64_t n_rows;
    int64_t n_columns;
    int64_t n_trees;
    int64_t n_held;        /* numbers that a node holds */
    const float *rows;     /* [rows, columns], without NaN */
    const Node *nodes;     /* of all trees */
    const int32_t *roots;  /* [trees] */
    const int32_t *depths; /* [trees], of the deepest leaf */
    const double *held;    /* [nodes, held] */
    double *found;         /* [rows, trees, held], written: the numbers of the leaves */
} Trees;

/* The functions as compiled for one instruction set. */
typedef struct {
    const char *name;
    int64_t (*scratch_size)(const Network *);
    void (*step)(const Network *, const Rows *, const Batch *);
    void (*adam)(const Adam *);
    void (*epochs)(const Network *, const Rows *, const Batch *, const Adam *, const Epochs *);
    int64_t (*forward_scratch)(const Network *);
    void (*forward)(const Network *, const Rows *, const Forward *);
    int64_t (*one_target_rows)(void);
    int64_t (*one_target_scratch)(const OneTarget *);
    void (*one_target)(const OneTarget *);
    int64_t (*line_scratch)(const Line *);
    void (*line_points)(const Line *);
    void (*line_sets)(const Line *);
    void (*line_above)(const Line *);
} Variant;

#endif
