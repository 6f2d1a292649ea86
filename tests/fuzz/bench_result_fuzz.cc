// Any text is either a result file that is written and read again as the same, or one error of bad
// input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "bench/harness/read_result.h"
#include "shared/base/check.h"

using namespace wsync;
using namespace wsync::bench;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = parse_result(text);
  if (!read) {
    // kRefused: it is of another form.
    WSYNC_CHECK(read.error().code() == ErrorCode::kInvalidInput ||
                    read.error().code() == ErrorCode::kRefused,
                "a bad file is bad input");
    return 0;
  }
  const nlohmann::json written = to_json(*read);
  const auto again = parse_result(written.dump());
  WSYNC_CHECK(again.has_value(), "what is written is read");
  WSYNC_CHECK(to_json(*again) == written, "as the same");
  for (const SuiteResult& suite : read->suites) (void)to_text(suite);
  return 0;
}
