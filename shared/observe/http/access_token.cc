#include "shared/observe/http/access_token.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <sys/random.h>
#include <system_error>
#include <utility>

#include "shared/base/base64.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/private_path.h"

namespace wsync::http {
namespace {

constexpr std::size_t kRandomBytes = 32;

// What the client shows as the token; std::nullopt if it shows none.
std::optional<std::string> shown_token(const Request& request) {
  if (request.count_headers("Authorization") != 1) return std::nullopt;
  const std::string header = *request.header("Authorization");
  const std::size_t space = header.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const std::string_view scheme = std::string_view(header).substr(0, space);
  const std::string_view value = trimmed(std::string_view(header).substr(space));
  if (same_word(scheme, "Bearer")) return std::string(value);
  if (!same_word(scheme, "Basic")) return std::nullopt;
  const auto bytes = decode_base64(value);
  if (!bytes) return std::nullopt;
  const std::string user_and_password(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const std::size_t colon = user_and_password.find(':');
  if (colon == std::string::npos) return std::nullopt;
  return user_and_password.substr(colon + 1);
}

// Looks at every character of `shown`, whatever the first ones are.
bool same_secret(std::string_view shown, std::string_view secret) {
  if (planted("token_prefix_admitted")) return !shown.empty() && secret.starts_with(shown);
  volatile unsigned char differs = shown.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < shown.size(); ++i)
    differs = static_cast<unsigned char>(differs |
                                         (static_cast<unsigned char>(shown[i]) ^
                                          static_cast<unsigned char>(secret[i % secret.size()])));
  return differs == 0;
}

}  // namespace

Result<AccessToken> AccessToken::read(const std::filesystem::path& path) {
  // One byte more than a token and its line end, so that a longer line is found.
  const Bytes bytes = WSYNC_TRY(read_secret_file(path, "token", kTokenBytesMax + 2));
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

Result<AccessToken> AccessToken::parse(std::string_view text, const std::string& name) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  const bool is_visible = std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
  if (is_visible && text.size() >= kTokenBytesMin && text.size() <= kTokenBytesMax)
    return AccessToken(std::string(text));
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format(
          "{}: expected one line with a token of {} to {} visible ASCII characters, "
          "found {}: make one with `wsync keys token FILE`",
          name, kTokenBytesMin, kTokenBytesMax,
          is_visible ? fmt::format("{} characters", text.size()) : "other characters in it"));
}

Result<> AccessToken::make(const std::filesystem::path& path) {
  std::array<std::byte, kRandomBytes> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return fail_errno("random bytes for a token", errno);
  const std::string line = base64url(random) + "\n";
  return write_durably(path, [&]() -> Result<Bytes> {
    std::error_code error;
    if (std::filesystem::exists(std::filesystem::symlink_status(path, error)))
      return fail(
          ErrorCode::kBusy,
          fmt::format("{} exists already: remove it, or choose another name", path.string()));
    const auto bytes = std::as_bytes(std::span(line));
    return Bytes{bytes.begin(), bytes.end()};
  });
}

bool AccessToken::admits(const Request& request) const {
  const auto shown = shown_token(request);
  return shown && same_secret(*shown, text_);
}

}  // namespace wsync::http
