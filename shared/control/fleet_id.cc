#include "shared/control/fleet_id.h"

#include "shared/base/digest.h"
#include "shared/base/format.h"

namespace wsync::control {

std::string FleetId::to_string() const { return Digest{.low = low, .high = high}.to_string(); }

Result<FleetId> FleetId::parse(std::string_view text) {
  const auto digits = Digest::parse(text);
  if (!digits || (digits->low == 0 && digits->high == 0))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected a fleet id of 32 hex digits that are not all zero, found "
                            "'{}'; `wsync status --json` shows the id of a running fleet",
                            text));
  return FleetId{.high = digits->high, .low = digits->low};
}

}  // namespace wsync::control
