// libwsync_cuda.so: the CUDA and NCCL backends, loaded when a GPU is first asked for, so that the
// programs start on a machine that has neither. It is one build with what loads it; another one is
// refused.
//
// Looked for in this order, the first that is there counts: WSYNC_CUDA_LIBRARY (an absolute path);
// the folder of the program or library that this code is in, and the folder of libraries of the
// installation that it is part of; where the system looks. One that is there and cannot be used is
// an error: no other is tried. It is loaded once and stays; so does the error. Any thread.
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

// What is known of a GPU without using it.
struct GpuFacts {
  std::uint32_t gpu = 0;  // its number among those that this process sees
  std::string name;       // "NVIDIA H200"
  std::string uuid;       // "GPU-..."
  std::string pci;        // "0000:17:00.0"
  std::uint32_t compute_major = 0;
  std::uint32_t compute_minor = 0;
  std::uint64_t total_bytes = 0;
  std::optional<std::uint32_t> numa_node;   // nothing: the system does not say
  std::string pcie_now;                     // "32.0 GT/s PCIe x16", empty: not said
  std::string pcie_max;                     // what the slot and card can do
  std::vector<std::uint32_t> peers;         // GPUs whose memory it can reach
  bool reads_registered_read_only = false;  // can pin memory that this process may only read
};

struct CudaFacts {
  std::string library;            // path of libwsync_cuda.so
  std::uint32_t built_with = 0;   // CUDA version of the headers and kernels: 13000 is 13.0
  std::uint32_t driver_cuda = 0;  // newest CUDA version that the driver can do
  std::string driver_release;     // of the kernel module: "580.159.03"; empty: not said
  std::vector<GpuFacts> gpus;
};

// The NUMA node that all GPUs of these UUIDs are on; nothing where they are on several, or the
// system does not say of one.
[[nodiscard]] std::optional<std::uint32_t> common_numa_node(const std::vector<GpuFacts>& gpus,
                                                            const std::vector<std::string>& uuids);
// For people: "9.0"; "1" or "not said"; "32.0 GT/s PCIe x16" or "PCIe link not said".
[[nodiscard]] std::string compute_text(const GpuFacts& gpu);
[[nodiscard]] std::string numa_node_text(const GpuFacts& gpu);
[[nodiscard]] std::string pcie_text(const GpuFacts& gpu);
// What this process's CUDA_VISIBLE_DEVICES is: "CUDA_VISIBLE_DEVICES is '0,1'", or "... is not
// set".
[[nodiscard]] std::string visible_gpus_text();
// "13.0" of 13000, as the driver counts.
[[nodiscard]] std::string cuda_version_text(std::uint32_t version);

// What the library's entry point returns. Functions: any thread.
struct CudaBackend {
  std::uint32_t size = 0;       // of this struct
  const char* build = nullptr;  // cuda_build() of the library
  // kRefused without a driver or that GPU, in words; options.kind is kCuda.
  Result<std::unique_ptr<Device>> (*make_device)(const DeviceOptions& options) = nullptr;
  // kRefused without a driver. A machine without GPUs has an empty list.
  Result<CudaFacts> (*facts)() = nullptr;
  // For measurements; `bytes` a multiple of 16. Errors of shared/device/cuda/ceilings.h.
  Result<std::unique_ptr<Ceilings>> (*make_ceilings)(std::uint32_t gpu,
                                                     std::uint64_t bytes) = nullptr;
};
inline constexpr const char* kCudaEntry = "wsync_cuda_backend";
using CudaEntry = const CudaBackend* (*)();

// What must be equal on both sides: release, compiler, and the sizes of what crosses.
[[nodiscard]] std::string cuda_build();

// The library's backend. kRefused, naming where was looked, or what is wrong with what is there.
[[nodiscard]] Result<const CudaBackend*> cuda_backend();
// Another entry point of the library, for shared/broadcast. Errors as cuda_backend(), and kRefused
// when it has none of that name.
[[nodiscard]] Result<void*> cuda_symbol(const char* name);

}  // namespace wsync::device
