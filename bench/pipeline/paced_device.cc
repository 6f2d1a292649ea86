#include "bench/pipeline/paced_device.h"

#include <string>
#include <sys/prctl.h>
#include <thread>
#include <utility>

#include "shared/device/worker_stream.h"

namespace wsync::bench {
namespace {

using device::Region;

constexpr std::chrono::microseconds kWorthSleeping{20};

class PacedTurn final : public device::StreamTurn {
 public:
  PacedTurn(device::StreamTurn& inner, double rate) : inner_(inner), rate_(rate) {}
  [[nodiscard]] const std::stop_token& stop() const noexcept override { return inner_.stop(); }
  [[nodiscard]] Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    const TimePoint begin = now();
    WSYNC_TRY(inner_.copy(to, from, bytes));
    wait_for_link(begin, bytes, rate_);
    return {};
  }

 private:
  device::StreamTurn& inner_;
  double rate_;
};

class PacedStream final : public device::Stream {
 public:
  PacedStream(std::unique_ptr<device::Stream> inner, double rate)
      : inner_(std::move(inner)), rate_(rate) {}

  [[nodiscard]] Result<> copy_to_device(const Region& to,
                                        std::span<const std::byte> source) override {
    WSYNC_TRY(device::check_region(to, true));
    if (to.bytes != source.size())
      return fail(ErrorCode::kInvalidInput,
                  "the source and the target of a copy have different sizes");
    return run([at = to.memory->address() + to.offset, source](device::StreamTurn& turn) {
      return turn.copy(at, source.data(), source.size());
    });
  }
  [[nodiscard]] Result<> copy_rows_to_device(const Region& to, std::span<const std::byte> source,
                                             const device::RowShape& rows) override {
    WSYNC_TRY(device::check_region(to, true));
    WSYNC_TRY(device::check_rows(source.size(), rows));
    return inner_->run([at = to.memory->address() + to.offset, source, rows,
                        rate = rate_](device::StreamTurn& turn) -> Result<> {
      const TimePoint begin = now();
      std::uint64_t bytes = 0;
      for (std::uint64_t row = 0; row < source.size(); row += rows.stride) {
        WSYNC_TRY(turn.copy(at + row, source.data() + row, rows.row_bytes));
        bytes += rows.row_bytes;
      }
      wait_for_link(begin, bytes, rate);
      return {};
    });
  }
  [[nodiscard]] Result<> run(device::StreamWork work) override {
    return inner_->run([work = std::move(work), rate = rate_](device::StreamTurn& turn) {
      PacedTurn paced(turn, rate);
      return work(paced);
    });
  }
  // All other operations of the H2D and broadcast streams are forwarded unchanged.
  [[nodiscard]] Result<> copy_to_host(std::span<std::byte> to, const Region& from) override {
    return inner_->copy_to_host(to, from);
  }
  [[nodiscard]] Result<> copy_on_device(const Region& to, const Region& from) override {
    return inner_->copy_on_device(to, from);
  }
  [[nodiscard]] Result<> copy_pieces(std::span<const device::Piece> pieces,
                                     std::span<SplitSum> sums) override {
    return inner_->copy_pieces(pieces, sums);
  }
  [[nodiscard]] Result<> change_words(std::span<const device::WordBlock> blocks,
                                      std::span<SplitSum> sums) override {
    return inner_->change_words(blocks, sums);
  }
  [[nodiscard]] Result<> record(device::Event& event) override { return inner_->record(event); }
  [[nodiscard]] Result<> wait(const device::Event& event) override { return inner_->wait(event); }
  [[nodiscard]] Result<> notify(device::StreamCallback callback) override {
    return inner_->notify(std::move(callback));
  }
  [[nodiscard]] Result<> status() const override { return inner_->status(); }

 private:
  std::unique_ptr<device::Stream> inner_;
  double rate_;
};

class PacedDevice final : public device::Device {
 public:
  PacedDevice(std::unique_ptr<device::Device> inner, const LinkRates& rates)
      : inner_(std::move(inner)), rates_(rates) {}

  [[nodiscard]] Result<std::unique_ptr<device::Stream>> create_stream(
      device::StreamRole role) override {
    auto made = inner_->create_stream(role);
    if (!made || role == device::StreamRole::kReload) return made;
    return std::unique_ptr<device::Stream>(std::make_unique<PacedStream>(
        std::move(*made),
        role == device::StreamRole::kHostToDevice ? rates_.h2d : rates_.broadcast));
  }
  [[nodiscard]] DeviceKind kind() const noexcept override { return inner_->kind(); }
  [[nodiscard]] device::DeviceIndex index() const noexcept override { return inner_->index(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::string uuid() const override { return inner_->uuid(); }
  [[nodiscard]] Result<device::MemoryInfo> memory_info() const override {
    return inner_->memory_info();
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> allocate(std::uint64_t bytes) override {
    return inner_->allocate(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> alias_host(
      std::span<const std::byte> bytes) override {
    return inner_->alias_host(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> borrow(
      std::span<std::byte> range) override {
    return inner_->borrow(range);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Memory>> import_memory(
      device::MemoryHandle handle) override {
    return inner_->import_memory(std::move(handle));
  }
  [[nodiscard]] Result<std::unique_ptr<device::HostRegistration>> register_host(
      std::span<const std::byte> range) override {
    return inner_->register_host(range);
  }
  [[nodiscard]] Result<std::unique_ptr<device::Event>> create_event() override {
    return inner_->create_event();
  }
  [[nodiscard]] Result<> await_stream(std::uintptr_t native, TimePoint deadline) override {
    return inner_->await_stream(native, deadline);
  }
  void free_unused() noexcept override { inner_->free_unused(); }

 private:
  std::unique_ptr<device::Device> inner_;
  LinkRates rates_;
};

}  // namespace

void wait_for_link(TimePoint begin, std::uint64_t bytes, double bytes_per_second) {
  if (bytes_per_second <= 0) return;
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / bytes_per_second);
  if (takes < kWorthSleeping) return;
  // Set the minimum timer slack. With the default the kernel may let the thread sleep up to 50 us
  // longer.
  thread_local const int slack = ::prctl(PR_SET_TIMERSLACK, 1);
  (void)slack;
  std::this_thread::sleep_until(
      steady_time(begin + std::chrono::duration_cast<std::chrono::nanoseconds>(takes)));
}

std::unique_ptr<device::Device> paced(std::unique_ptr<device::Device> device,
                                      const LinkRates& rates) {
  return std::make_unique<PacedDevice>(std::move(device), rates);
}

}  // namespace wsync::bench
