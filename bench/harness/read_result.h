// Reads a result file (bench/harness/result.h) of another run. The content of the file is not
// trusted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Limits of a result file. Details count only toward the bytes.
inline constexpr std::size_t kResultBytesMax = 64U << 20U;
inline constexpr std::size_t kResultDepthMax = 32;
inline constexpr std::size_t kResultSuitesMax = 64;
inline constexpr std::size_t kResultCasesMax = 4096;       // per suite
inline constexpr std::size_t kResultSamplesMax = 1 << 20;  // per list
inline constexpr std::size_t kResultTextBytesMax = 4096;   // per name or sentence
inline constexpr std::size_t kResultNotesMax = 1024;

// kInvalidInput, naming the place ("suites[0].cases[3].value: ..."), what was expected and what was
// found, in these cases: no JSON, another schema or schema version, a field that is missing or has
// another type, a number that is not finite, a duplicate case, or a value above a limit. kRefused
// for JSON of another form: without a schema, or of an older schema version. Unknown fields are
// ignored, and `details` are not kept.
[[nodiscard]] Result<ResultFile> parse_result(std::string_view text);
// Reads a file in the same way. Errors name the file. Also kNotFound and kIo.
[[nodiscard]] Result<ResultFile> read_result(const std::string& path);

}  // namespace wsync::bench
