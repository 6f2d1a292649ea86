// Reads what another run has written: a file of bench/harness/result.h. The file is anybody's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Limits of a result file; details count as bytes only.
inline constexpr std::size_t kResultBytesMax = 64U << 20U;
inline constexpr std::size_t kResultDepthMax = 32;
inline constexpr std::size_t kResultSuitesMax = 64;
inline constexpr std::size_t kResultCasesMax = 4096;       // of one suite
inline constexpr std::size_t kResultSamplesMax = 1 << 20;  // of one list
inline constexpr std::size_t kResultTextBytesMax = 4096;   // of one name or sentence
inline constexpr std::size_t kResultNotesMax = 1024;

// kInvalidInput, naming the place ("suites[0].cases[3].value: ..."), what was expected and what was
// found: no JSON, another schema, another version of it, a field that is missing or of another
// type, a number that is not finite, one case twice, or more than a limit. Fields that it does not
// know are left alone; `details` are not kept.
[[nodiscard]] Result<ResultFile> parse_result(std::string_view text);
// The same of a file; errors name it. kNotFound and kIo besides.
[[nodiscard]] Result<ResultFile> read_result(const std::string& path);

}  // namespace wsync::bench
