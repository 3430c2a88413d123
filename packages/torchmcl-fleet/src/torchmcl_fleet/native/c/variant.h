/* The functions above, as compiled for the instruction set of the file that includes this one last. */

const Variant VARIANT = {
    .name = NAME,
    .scratch_size = scratch_size,
    .step = training_step,
    .adam = adam_update,
    .epochs = training_epochs,
    .forward_scratch = forward_scratch,
    .forward = forward_pass,
    .one_target_rows = one_target_rows,
    .one_target_scratch = one_target_scratch,
    .one_target = one_target,
    .line_scratch = line_scratch,
    .line_points = line_points,
    .line_sets = line_sets,
    .line_above = line_above,
};
