// Needs a function that nobody has.
extern "C" int wsync_function_that_nobody_has();
extern "C" int wsync_not_the_entry() { return wsync_function_that_nobody_has(); }
