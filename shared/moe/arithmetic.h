// Identifies the floating-point functions of this process. The loops of this folder give the same
// bits everywhere, but they depend on these functions of the C library.
#pragma once

#include <string>

namespace wsync::moe {

// Returns one short line that names the processor architecture, the C library and a digest of the
// results of exp, expm1, log, sin, cos and pow ("x86-64, glibc 2.36, functions 5b0c7d3f21e8a964").
// The code of these functions differs between versions of the C library, and between processors
// with and without fused multiply-add, and so does the last bit of their results. Two processes of
// one program with the same line gave equal results for thousands of arguments, and so their
// computations agree bit by bit. Processes with different lines may differ.
//
// Thread: any. Takes about one millisecond.
[[nodiscard]] std::string arithmetic();

}  // namespace wsync::moe
