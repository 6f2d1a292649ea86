// What this process computes with beside the loops of this folder, which are the same everywhere.
#pragma once

#include <string>

namespace wsync::moe {

// The C library and what its exp, expm1, log, sin, cos and pow give, as one short line ("x86-64,
// glibc 2.36, functions 5b0c7d3f21e8a964"): a C library has other code for these from version to
// version and for processors with and without fused multiply-add, and the last bit differs.
// Processes of one program that say the same have given the same for thousands of arguments, and so
// agree to the bit; those that say something else may not. Thread: any; takes about a millisecond.
[[nodiscard]] std::string arithmetic();

}  // namespace wsync::moe
