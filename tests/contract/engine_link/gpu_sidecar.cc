// The memory of a sidecar on a GPU, as a process of its own: in the process that made it, a handle
// is not mapped a second time. Driven over its standard input (gpu_sidecar.h), ends with it.
//
// Usage: gpu_sidecar GPU BYTES SOCKET
//   start        prints the handles of two buffers of BYTES, hexadecimal, a line each, and sends
//                their descriptors through the socket with that number
//   put SLOT N   followed by N bytes: they lie in that buffer: "done"
//   free         gives both buffers back: "done"
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/unix_socket.h"
#include "shared/device/device.h"

namespace {

using namespace wsync;

// The test reads what is printed, so an error is told there and ends the process.
template <class T>
T value_or_exit(Result<T> result) {
  if (!result) {
    fmt::print("{}\n", result.error().message());
    std::fflush(stdout);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

void print_handle(const device::Memory& memory, int socket) {
  const auto handle = value_or_exit(memory.export_handle());
  const std::byte one{1};
  const int fd = handle.fd.get();
  if (value_or_exit(send_some(socket, {&one, 1}, {&fd, 1})) != 1) std::exit(1);
  for (const std::byte byte : handle.opaque) fmt::print("{:02x}", static_cast<unsigned>(byte));
  fmt::print("\n");
}

void put(device::Device& device, device::Stream& stream, device::Memory& memory,
         std::size_t bytes) {
  std::vector<std::byte> source(bytes);
  if (std::fread(source.data(), 1, bytes, stdin) != bytes) std::exit(1);
  value_or_exit(stream.copy_to_device({.memory = &memory, .offset = 0, .bytes = bytes}, source));
  const auto event = value_or_exit(device.create_event());
  value_or_exit(stream.record(*event));
  value_or_exit(event->wait(now() + std::chrono::seconds(20)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto device = value_or_exit(device::make_device(
      {.kind = DeviceKind::kCuda, .gpu = static_cast<std::uint32_t>(std::atoi(argv[1]))}));
  std::array<std::unique_ptr<device::Memory>, 2> buffers;
  for (auto& buffer : buffers)
    buffer = value_or_exit(device->allocate(std::strtoull(argv[2], nullptr, 10)));
  for (const auto& buffer : buffers) print_handle(*buffer, std::atoi(argv[3]));
  const auto stream = value_or_exit(device->create_stream(device::StreamRole::kBroadcast));
  std::fflush(stdout);
  std::array<char, 64> line{};
  while (std::fgets(line.data(), line.size(), stdin) != nullptr) {
    unsigned slot = 0;
    std::size_t bytes = 0;
    if (std::sscanf(line.data(), "put %u %zu", &slot, &bytes) == 2)
      put(*device, *stream, *buffers.at(slot), bytes);
    else
      for (auto& buffer : buffers) buffer.reset();
    fmt::print("done\n");
    std::fflush(stdout);
  }
  return 0;
}
