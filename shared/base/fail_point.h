// Fail points: places in a process where tests let it be killed, by name. Unlike a
// planted fault (planted.h) nothing that the product does is wrong: a process can be lost anywhere,
// and a fail point only says where. Always compiled in; costs one load where none is armed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wsync {

// This process kills itself (SIGKILL) when it comes to the fail point `name` for the `hits`-th time
// from now, counted from 1. One at a time; before other threads come to fail points.
void arm_fail_point(std::string name, std::uint64_t hits);
// Whether the next thread that comes to this one is killed.
[[nodiscard]] bool fail_point_is_next(std::string_view name) noexcept;
// A place that has a name. Thread: any.
void fail_point(std::string_view name) noexcept;

}  // namespace wsync
