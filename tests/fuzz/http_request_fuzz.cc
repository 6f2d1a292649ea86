// Any bytes begin with a request's head, with what may become one, or with what is refused; a body
// in chunks comes out the same in pieces of any size.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "shared/base/check.h"
#include "shared/observe/http/access_token.h"
#include "shared/observe/http/chunked_body.h"
#include "shared/observe/http/request_head.h"

namespace {

using namespace wsync::http;

constexpr std::uint64_t kLimit = 4096;

void check_head(std::string_view bytes) {
  using State = RequestHead::State;
  const RequestHead head = examine_head(bytes);
  switch (head.state) {
    case State::kPartial:
      break;
    case State::kWhole:
      WSYNC_CHECK(head.bytes <= bytes.size() && head.bytes <= kMaxHeadBytes + 4 &&
                      bytes.substr(0, head.bytes).ends_with("\r\n\r\n") &&
                      head.request.path.size() <= kMaxHeadLineBytes,
                  "a head is what came, up to its blank line");
      WSYNC_CHECK(
          examine_head(bytes.substr(0, head.bytes)).request.headers == head.request.headers &&
              examine_head(bytes.substr(0, head.bytes - 1)).state == State::kPartial,
          "a head does not depend on what follows");
      break;
    case State::kRefused:
      WSYNC_CHECK(head.status >= 400 && !head.sentence.empty(), "a refusal says why");
      break;
  }
}

void check_token(std::string_view bytes) {
  constexpr std::string_view kToken = "a-token-of-this-server";
  static const AccessToken token = AccessToken::parse(kToken, "fuzz").value();
  const std::string value(bytes);
  const bool admitted = token.admits({.headers = {{"Authorization", value}}});
  // A password is encoded: then the token is not seen in the header.
  WSYNC_CHECK(!admitted || value.find(kToken) != std::string::npos ||
                  same_word(value.substr(0, 5), "basic"),
              "who is admitted has shown the token");
  (void)token.admits({.headers = {{"Authorization", "Basic " + value}}});
  (void)AccessToken::parse(bytes, "fuzz");
}

void check_chunks(std::string_view bytes) {
  ChunkedBody whole(kLimit);
  std::string body;
  const std::size_t used = whole.take(bytes, body);
  ChunkedBody pieces(kLimit);
  std::string pieced;
  std::size_t at = 0;
  while (at < bytes.size() && pieces.state() == ChunkedBody::State::kMore)
    at += pieces.take(bytes.substr(at, 1), pieced);
  WSYNC_CHECK(used == at && body == pieced && whole.state() == pieces.state(),
              "pieces come out as the whole");
  WSYNC_CHECK(body.size() <= kLimit, "no more than the limit");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_head(bytes);
  check_chunks(bytes);
  check_token(bytes);
  return 0;
}
