// Host devices whose copies take as long as on links of given speeds, as on GPUs with copy engines:
// the bytes are copied, and then the stream's thread sleeps until the link would have transferred
// them.
#pragma once

#include <chrono>
#include <memory>

#include "shared/base/clock.h"
#include "shared/device/device.h"

namespace wsync::bench {

// Bytes per second of each stage's link. All are above 0, or all are 0: then copies are as fast as
// the cores.
struct LinkRates {
  double h2d = 0;        // per device
  double broadcast = 0;  // to all devices at once
  double reload = 0;     // per engine
  [[nodiscard]] bool given() const noexcept { return h2d > 0; }
};

// Sleeps until a transfer of `bytes` bytes that started at `begin` would have ended on a link of
// that rate. Returns immediately if the rate is 0 or the transfer takes only a few microseconds.
void wait_for_link(TimePoint begin, std::uint64_t bytes, double bytes_per_second);

// Wraps a device: copies on its H2D stream take the time of rates.h2d, those on its broadcast
// stream the time of rates.broadcast.
[[nodiscard]] std::unique_ptr<device::Device> paced(std::unique_ptr<device::Device> device,
                                                    const LinkRates& rates);

}  // namespace wsync::bench
