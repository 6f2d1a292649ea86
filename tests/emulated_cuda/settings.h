// What the environment asks of the emulated driver (README.md lists the variables). Read once, when
// the driver is first called; a variable that cannot be read ends the process with a sentence,
// because a test that asks for something else than it means proves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulated_cuda {

enum class Mode : std::uint8_t { kUsual, kNoGpu, kOldDriver, kMismatch };

// One of WSYNC_EMULATED_CUDA_FAULTS: what happens at which calls of `name`.
struct Fault {
  std::string name;        // an exported function, or a kind of stream work: "copy", "kernel", ...
  std::uint64_t from = 1;  // 1 is the first call
  std::uint64_t to = 1;
  enum class Kind : std::uint8_t { kError, kHang, kFlip } kind = Kind::kError;
  int error = 0;  // a CUresult
};

struct Settings {
  Mode mode = Mode::kUsual;
  int gpus = 2;
  std::vector<int> visible;  // numbers on the machine of the GPUs that this process sees
  std::uint64_t memory_bytes = std::uint64_t{1} << 30U;
  std::uint64_t delay_us = 0;
  std::uint64_t seed = 1;
  std::uint64_t register_us_per_mib = 100;
  bool peers = true;
  bool reads_read_only = false;  // READ_ONLY_HOST_REGISTER_SUPPORTED
  bool descriptors = true;       // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
  std::string machine;           // file of what all processes have taken of the GPUs; empty: none
  std::string report;            // error file; empty: stderr
  std::vector<Fault> faults;
};

[[nodiscard]] const Settings& settings();

// 16 bytes that are those of GPU `number` of this machine.
void gpu_uuid(int number, unsigned char* to);

}  // namespace emulated_cuda
