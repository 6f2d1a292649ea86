// Memory of the library that Python arrays look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nanobind/nanobind.h>

namespace wsync::python {

// A second mapping of shared memory, with the buffer protocol. An array that looks at it may live
// longer than the library's own mapping: detach() puts other pages in its place, so that an old
// array reads zeros and what is written to it is lost, where a pointer would end the process or
// change another version. A forked child has such pages from the start.
class Memory {
 public:
  // Throws if the memory cannot be mapped a second time.
  Memory(std::uintptr_t address, std::size_t bytes, bool writable);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void detach();
  bool is_detached() const { return detached_; }
  std::size_t bytes() const { return bytes_; }

  int fill_buffer(PyObject* owner, Py_buffer* view, int flags);

 private:
  friend void detach_in_child();

  bool replace_pages() noexcept;

  void* pages_ = nullptr;
  std::size_t page_bytes_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  bool writable_ = false;
  bool detached_ = false;
};

void bind_memory(nanobind::module_& module);

}  // namespace wsync::python
