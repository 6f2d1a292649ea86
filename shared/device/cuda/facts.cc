#include "shared/device/cuda/facts.h"

#include <charconv>
#include <dlfcn.h>
#include <fstream>
#include <string>

#include "shared/base/format.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/mapped_memory.h"

namespace wsync::device::cuda {
namespace {

namespace fs = std::filesystem;

// Returns the trimmed first line of a file, or an empty string if there is none.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const auto begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
}

// Returns the first word of digits and dots that begins with a digit and contains a dot: the
// release in "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build
// ...".
std::string release_in(const std::string& line) {
  for (std::size_t at = 0; at < line.size();) {
    const auto begin = line.find_first_not_of(' ', at);
    if (begin == std::string::npos) break;
    const auto end = std::min(line.find(' ', begin), line.size());
    const auto word = line.substr(begin, end - begin);
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos && word.front() != '.')
      return word;
    at = end;
  }
  return {};
}

std::string driver_release(const fs::path& root) {
  auto release = release_in(first_line(root / "proc/driver/nvidia/version"));
  return release.empty() ? release_in(first_line(root / "sys/module/nvidia/version")) : release;
}

// Combines "32.0 GT/s PCIe" and "16" to "32.0 GT/s PCIe x16".
std::string link(const fs::path& folder, const char* which) {
  const auto speed = first_line(folder / fmt::format("{}_link_speed", which));
  const auto width = first_line(folder / fmt::format("{}_link_width", which));
  if (speed.empty() || width.empty() || width == "0" || speed.find("nknown") != std::string::npos)
    return {};
  return fmt::format("{} x{}", speed, width);
}

std::optional<std::uint32_t> numa_node(const fs::path& folder) {
  const auto text = first_line(folder / "numa_node");
  std::uint32_t node = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), node);
  // -1 means that the firmware does not report the node.
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return node;
}

// Returns the path of this library, or of the program that contains this code.
std::string own_path() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_path), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code code;
  const auto path = fs::canonical(info.dli_fname, code);
  return code ? std::string(info.dli_fname) : path.string();
}

// Reads attributes of one GPU in sequence and keeps the first error.
class Attributes {
 public:
  Attributes(const Driver& cuda, CUdevice device) : cuda_(cuda), device_(device) {}
  std::uint32_t get(CUdevice_attribute which) {
    const auto value = attribute(cuda_, which, device_);
    if (value) return static_cast<std::uint32_t>(*value);
    if (state_) state_ = fail(value.error());
    return 0;
  }
  [[nodiscard]] const Result<>& state() const noexcept { return state_; }

 private:
  const Driver& cuda_;
  CUdevice device_;
  Result<> state_;
};

Result<std::vector<std::uint32_t>> peers_of(const Driver& cuda, std::uint32_t gpu,
                                            std::uint32_t count) {
  std::vector<std::uint32_t> peers;
  for (std::uint32_t other = 0; other < count; ++other) {
    if (other == gpu) continue;
    CUdevice from = 0;
    CUdevice to = 0;
    int can = 0;
    WSYNC_TRY(check(cuda, cuda.cuDeviceGet(&from, static_cast<int>(gpu)), "a GPU"));
    WSYNC_TRY(check(cuda, cuda.cuDeviceGet(&to, static_cast<int>(other)), "a GPU"));
    WSYNC_TRY(check(cuda, cuda.cuDeviceCanAccessPeer(&can, from, to), "peer access of GPUs"));
    if (can != 0) peers.push_back(other);
  }
  return peers;
}

Result<GpuFacts> facts_of(const Driver& cuda, std::uint32_t gpu, std::uint32_t count,
                          const fs::path& root) {
  CUdevice device = 0;
  WSYNC_TRY(check(cuda, cuda.cuDeviceGet(&device, static_cast<int>(gpu)), "a GPU"));
  GpuFacts facts;
  facts.gpu = gpu;
  auto name = WSYNC_TRY(model_name(cuda, device));
  auto uuid = WSYNC_TRY(read_uuid(cuda, device));
  auto peers = WSYNC_TRY(peers_of(cuda, gpu, count));
  std::size_t bytes = 0;
  WSYNC_TRY(check(cuda, cuda.cuDeviceTotalMem(&bytes, device), "the memory of a GPU"));
  Attributes read(cuda, device);
  facts.name = std::move(name);
  facts.uuid = std::move(uuid);
  facts.peers = std::move(peers);
  facts.total_bytes = bytes;
  facts.compute_major = read.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  facts.compute_minor = read.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  const auto domain = read.get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  const auto bus = read.get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  const auto slot = read.get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  WSYNC_TRY(read.state());
  // A driver that does not know this attribute does not support the feature.
  facts.reads_registered_read_only =
      attribute(cuda, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, device).value_or(0) !=
      0;
  facts.shares_memory = check_shares_memory(cuda, device).has_value();
  facts.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, slot);
  const auto folder = root / "sys/bus/pci/devices" / facts.pci;
  facts.numa_node = numa_node(folder);
  facts.pcie_now = link(folder, "current");
  facts.pcie_max = link(folder, "max");
  return facts;
}

}  // namespace

Result<CudaFacts> read_facts(const Driver& cuda, const fs::path& root) {
  const auto count = WSYNC_TRY(gpu_count(cuda));
  const auto version = WSYNC_TRY(driver_version(cuda));
  CudaFacts facts{.library = own_path(),
                  .built_with = CUDA_VERSION,
                  .driver_cuda = version,
                  .driver_release = driver_release(root),
                  .gpus = {}};
  for (std::uint32_t gpu = 0; gpu < count; ++gpu) {
    auto one = facts_of(cuda, gpu, count, root);
    if (!one) return fail(one.error().with_context(fmt::format("GPU {}", gpu)));
    facts.gpus.push_back(std::move(*one));
  }
  return facts;
}

}  // namespace wsync::device::cuda
