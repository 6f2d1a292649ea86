// AccessToken: the secret that the clients of an HTTP server show, so that the server may be
// reached from other hosts. HTTP itself encrypts nothing: whoever reads the traffic has the token.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/observe/http/http_message.h"

namespace wsync::http {

inline constexpr std::size_t kTokenBytesMin = 16;
inline constexpr std::size_t kTokenBytesMax = 256;

class AccessToken {
 public:
  // Reads a token from a file of one line. Errors: those of read_secret_file(); kInvalidInput
  // unless the line has kTokenBytesMin to kTokenBytesMax visible ASCII characters. No error shows
  // them.
  [[nodiscard]] static Result<AccessToken> read(const std::filesystem::path& path);
  // The token in the text of such a file. `name`: of the file, for errors. Pure.
  [[nodiscard]] static Result<AccessToken> parse(std::string_view text, const std::string& name);
  // Writes a file with a new token of 256 random bits, with mode 0600. kBusy if the file exists.
  [[nodiscard]] static Result<> make(const std::filesystem::path& path);

  // Whether the request has the token in its only Authorization header: as a Bearer token (RFC
  // 6750), or as the password of Basic (RFC 7617), with any user, which browsers ask for. The time
  // that the comparison takes depends on the length of what was sent, not on its characters.
  [[nodiscard]] bool admits(const Request& request) const;
  // The value of the Authorization header of a client.
  [[nodiscard]] std::string authorization() const { return "Bearer " + text_; }

 private:
  explicit AccessToken(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace wsync::http
