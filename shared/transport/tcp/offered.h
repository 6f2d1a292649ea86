// What a TcpSource knows of one offered version. Bulk thread only.
#pragma once

#include <optional>
#include <vector>

#include "shared/transport/frame.h"
#include "shared/transport/stream.h"

namespace wsync::transport::tcp {

struct Offered {
  explicit Offered(Offer given)
      : offer(std::move(given)),
        ready(offer.buckets.size(), offer.complete),
        digests(offer.buckets.size()) {}

  // Whether this asks for something that this offer has or will have: kFenced or kRefused if not.
  [[nodiscard]] Result<> judge(const Frame& get) const;

  Offer offer;
  std::vector<bool> ready;
  std::vector<std::optional<Digest>> digests;  // of buckets that were received, not made, here
};

}  // namespace wsync::transport::tcp
