#include "shared/weights/version.h"

#include <charconv>

#include "shared/base/format.h"

namespace wsync {

std::string Version::to_string() const { return fmt::format("{}.{}", epoch, step); }

Result<Version> Version::parse(std::string_view text) {
  Version version;
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("version '{}' is not of the form epoch.step, e.g. 1.42", text));
  };
  const char* const end = text.data() + text.size();
  const auto [dot, epoch_error] = std::from_chars(text.data(), end, version.epoch);
  if (epoch_error != std::errc{} || dot == end || *dot != '.') return bad();
  const auto [last, step_error] = std::from_chars(dot + 1, end, version.step);
  if (step_error != std::errc{} || last != end) return bad();
  return version;
}

}  // namespace wsync
