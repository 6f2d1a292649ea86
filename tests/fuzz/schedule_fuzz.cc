// Any text either makes a schedule that reads back as it is written, or one error of bad input.
// What is called valid can be lowered.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shared/base/check.h"
#include "trainer_side/schedule/lowering.h"
#include "trainer_side/schedule/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync;
  using namespace wsync::schedule;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Schedule> read = read_actions(text);
  if (!read) {
    WSYNC_CHECK(read.error().code() == ErrorCode::kInvalidInput, "bad text is bad input");
    return 0;
  }
  const Result<Schedule> again = read_actions(write_actions(*read));
  WSYNC_CHECK(again && again->shape == read->shape && again->ranks == read->ranks,
              "a schedule reads back as it is written");
  const bool valid = find_violations(*read).empty();
  WSYNC_CHECK(lower(*read, {}).has_value() == valid, "a valid schedule can be lowered");
  return 0;
}
