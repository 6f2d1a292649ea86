// Device memory that one process allocates and another one maps, in the two ways that CUDA has.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu_probe/driver.h"

namespace wsync::probe {

// Device memory of cuMemCreate, mapped in this process.
class Shareable {
 public:
  CUresult create(CUdevice device, std::size_t bytes);
  // Maps memory that another process has exported; `access` is what this process may do with it.
  CUresult import(CUdevice device, std::size_t bytes, int fd, CUmemAccess_flags access);
  // A descriptor for other processes, which the caller closes; -1 if there is none.
  int exported() const;
  CUresult release();
  CUdeviceptr at() const { return at_; }

 private:
  CUresult map(CUdevice device, CUmemAccess_flags access);

  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr at_ = 0;
  std::size_t bytes_ = 0;
};

// Children that map this process's memory. They are started before the first call of the driver.
class OtherProcesses {
 public:
  OtherProcesses();
  void ask(CUdevice device);

 private:
  struct Child {
    int pid = -1;
    int socket = -1;
  };
  std::vector<Child> children_;
};

}  // namespace wsync::probe
