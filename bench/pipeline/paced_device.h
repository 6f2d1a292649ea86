// Host devices whose copies take as long as on links of given speeds, as GPUs' copy engines do
// them: the bytes are copied, and then the stream's thread sleeps until the link would have brought
// them.
#pragma once

#include <chrono>
#include <memory>

#include "shared/base/clock.h"
#include "shared/device/device.h"

namespace wsync::bench {

// Bytes per second of each stage's link: all above 0, or all 0, which is as fast as cores copy.
struct LinkRates {
  double h2d = 0;        // of each device
  double broadcast = 0;  // to all devices at once
  double reload = 0;     // of each engine
  [[nodiscard]] bool given() const noexcept { return h2d > 0; }
};

// Sleeps until `bytes` that began at `begin` are through a link of that rate. Of no rate, and for a
// few microseconds, it does not.
void wait_for_link(TimePoint begin, std::uint64_t bytes, double bytes_per_second);

// The device as it is, but for its streams' copies: those of the H2D stream take rates.h2d, those
// of the broadcast stream rates.broadcast.
[[nodiscard]] std::unique_ptr<device::Device> paced(std::unique_ptr<device::Device> device,
                                                    const LinkRates& rates);

}  // namespace wsync::bench
