#include "shared/control/zmq/zap.h"

#include <cstdint>
#include <zmq.h>

#include "shared/base/format.h"
#include "shared/control/keys/key_file.h"

namespace wsync::control {
namespace {

constexpr std::string_view kZapVersion = "1.0";
constexpr std::string_view kCurve = "CURVE";

tl::unexpected<Error> wrong_zap(std::string_view what, std::string_view expected,
                                std::string_view found) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("question of the ZeroMQ library about a key: {}: expected {}, found {}",
                          what, expected, found));
}

}  // namespace

Result<ZapRequest> parse_zap_request(std::span<const std::string> parts) {
  if (parts.empty() || parts[0] != kZapVersion)
    return wrong_zap("version", kZapVersion, parts.empty() ? "nothing" : parts[0]);
  if (parts.size() != kZapRequestParts)
    return wrong_zap("parts", fmt::format("{}", kZapRequestParts), fmt::format("{}", parts.size()));
  if (parts[2] != kZapDomain) return wrong_zap("domain", kZapDomain, parts[2]);
  if (parts[5] != kCurve) return wrong_zap("mechanism", kCurve, parts[5]);
  const std::string& key = parts[6];
  if (key.size() != kKeyBytes)
    return wrong_zap("key", fmt::format("{} bytes", kKeyBytes), fmt::format("{}", key.size()));
  std::array<char, kKeyCharacters + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(key.data()), key.size());
  return ZapRequest{.id = parts[1], .address = parts[3], .public_key = text.data()};
}

std::array<std::string, kZapReplyParts> zap_reply(const std::string& id, ZapStatus status,
                                                  const std::string& user) {
  const auto parts = [&](std::string code, std::string text, std::string who) {
    return std::array<std::string, kZapReplyParts>{std::string(kZapVersion), id,
                                                   std::move(code),          std::move(text),
                                                   std::move(who),           std::string()};
  };
  switch (status) {
    case ZapStatus::kAdmitted:
      return parts("200", "OK", user);
    case ZapStatus::kRefused:
      return parts("400", "the key is not listed", "");
    case ZapStatus::kBroken:
      break;
  }
  return parts("500", "the question was not understood", "");
}

}  // namespace wsync::control
