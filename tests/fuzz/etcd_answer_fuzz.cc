// Any bytes as an answer of etcd: each parser accepts or refuses them, and what it accepts has what
// its caller relies on.
#include <cstdint>
#include <string_view>

#include "shared/base/check.h"
#include "trainer_side/coordinator/etcd/etcd_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync::coordinator::etcd;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto found = parse_range(body))
    WSYNC_CHECK(found->revision != 0 || found->value.empty(), "a key that does not exist is empty");
  if (const auto put = parse_put(body)) {
    WSYNC_CHECK(put->is_stored == (put->revision != 0), "what is stored has a revision");
    WSYNC_CHECK(!put->is_stored || put->found.revision == 0, "what is stored was not read");
  }
  if (const auto lease = parse_grant(body)) WSYNC_CHECK(*lease != 0, "a lease has a number");
  (void)parse_keep_alive(body);
  WSYNC_CHECK(!parse_refusal(503, body).text.empty(), "a refusal says something");
  return 0;
}
