/* The functions above, as compiled for the instruction set of the file that includes this one last. */

const Variant VARIANT = {NAME,          scratch_size, training_step, adam_update,  choice_scratch, choose_rows,
                         means_scratch, move_rows,    line_scratch,  line_points,  line_sets,      line_above,
                         lstm_lanes,    lstm_scratch, lstm_run};
