// fmt::format for every folder, so that the library is named in one place until std::format can
// take over.
#pragma once

#include <fmt/format.h>  // IWYU pragma: export
#include <fmt/ranges.h>  // IWYU pragma: export
