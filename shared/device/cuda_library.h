// Loads libwsync_cuda.so, which contains the CUDA and NCCL backends, when a GPU is first requested.
// The programs therefore also start on a machine without CUDA or NCCL. The library must come from
// the same build as its loader; any other build is refused.
//
// Search order; the first library found is used: (1) WSYNC_CUDA_LIBRARY (an absolute path); (2) the
// folder of the program or library that contains this code, and the library folder of its
// installation; (3) the system's search. A library that exists but cannot be used is an error, and
// the search stops. The library, or the error, is kept for the life of the process. Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/device/ceilings.h"
#include "shared/device/device.h"

namespace wsync::device {

// Properties that can be read without using the GPU.
struct GpuFacts {
  std::uint32_t gpu = 0;  // number among the GPUs that this process sees
  std::string name;       // "NVIDIA H200"
  std::string uuid;       // "GPU-..."
  std::string pci;        // "0000:17:00.0"
  std::uint32_t compute_major = 0;
  std::uint32_t compute_minor = 0;
  std::uint64_t total_bytes = 0;
  std::optional<std::uint32_t> numa_node;   // empty: the system does not report it
  std::string pcie_now;                     // "32.0 GT/s PCIe x16"; empty: not reported
  std::string pcie_max;                     // maximum of slot and card
  std::vector<std::uint32_t> peers;         // GPUs whose memory it can access
  bool reads_registered_read_only = false;  // can pin memory that this process maps read-only
  bool shares_memory = false;               // can share memory with other processes; needed
};

struct CudaFacts {
  std::string library;            // path of libwsync_cuda.so
  std::uint32_t built_with = 0;   // CUDA version of the headers and kernels: 13000 is 13.0
  std::uint32_t driver_cuda = 0;  // newest CUDA version that the driver supports
  std::string driver_release;     // kernel module release: "580.159.03"; empty: not reported
  std::vector<GpuFacts> gpus;
};

// Returns the NUMA node shared by all GPUs with these UUIDs. Returns std::nullopt if they span
// nodes or if the system does not report the node of one of them.
[[nodiscard]] std::optional<std::uint32_t> common_numa_node(const std::vector<GpuFacts>& gpus,
                                                            const std::vector<std::string>& uuids);
// Texts for people: "9.0"; "1" or "not said"; "32.0 GT/s PCIe x16" or "PCIe link not said".
[[nodiscard]] std::string compute_text(const GpuFacts& gpu);
[[nodiscard]] std::string numa_node_text(const GpuFacts& gpu);
[[nodiscard]] std::string pcie_text(const GpuFacts& gpu);
// Describes this process's CUDA_VISIBLE_DEVICES: "CUDA_VISIBLE_DEVICES is '0,1'", or "... is not
// set".
[[nodiscard]] std::string visible_gpus_text();
// Converts the driver's version number: 13000 -> "13.0".
[[nodiscard]] std::string cuda_version_text(std::uint32_t version);

// Returned by the library's entry point. The functions may be called from any thread.
struct CudaBackend {
  std::uint32_t size = 0;       // of this struct
  const char* build = nullptr;  // cuda_build() of the library
  // kRefused, with the reason, without a driver or that GPU. options.kind must be kCuda.
  Result<std::unique_ptr<Device>> (*make_device)(const DeviceOptions& options) = nullptr;
  // kRefused without a driver. The list is empty on a machine without GPUs.
  Result<CudaFacts> (*facts)() = nullptr;
  // For measurements. `bytes` is a multiple of 16. Errors of shared/device/cuda/ceilings.h.
  Result<std::unique_ptr<Ceilings>> (*make_ceilings)(std::uint32_t gpu,
                                                     std::uint64_t bytes) = nullptr;
};
inline constexpr const char* kCudaEntry = "wsync_cuda_backend";
using CudaEntry = const CudaBackend* (*)();

// Identifies a build; must be equal on both sides. Contains the release, the compiler, and the
// sizes of the types that cross the library boundary.
[[nodiscard]] std::string cuda_build();

// Returns the library's backend. kRefused names the searched places, or the defect of the library
// that was found.
[[nodiscard]] Result<const CudaBackend*> cuda_backend();
// Returns another entry point of the library, for shared/broadcast. Errors as cuda_backend(); also
// kRefused if the library has no such symbol.
[[nodiscard]] Result<void*> cuda_symbol(const char* name);

}  // namespace wsync::device
