#include "deploy/python/extension/memory.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

#include "deploy/python/extension/calls.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace nb = nanobind;

namespace wsync::python {
namespace {

// Never destroyed: arrays may be alive when the process ends.
std::mutex& memories_mutex() {
  static auto* const made = new std::mutex;
  return *made;
}

std::set<Memory*>& all_memories() {
  static auto* const made = new std::set<Memory*>;
  return *made;
}

}  // namespace

// The second mapping has the flags of the first one: it is not there in a child, and an array that
// the child has inherited would end it.
void detach_in_child() {
  for (Memory* const memory : all_memories()) memory->replace_pages();
  memories_mutex().unlock();
}

Memory::Memory(std::uintptr_t address, std::size_t bytes, bool writable)
    : bytes_(bytes), writable_(writable) {
  static const int registered = ::pthread_atfork(
      [] { memories_mutex().lock(); }, [] { memories_mutex().unlock(); }, &detach_in_child);
  (void)registered;
  if (bytes == 0) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  offset_ = address % page;
  page_bytes_ = (offset_ + bytes + page - 1) / page * page;
  // An old size of 0 makes a second mapping of the same shared pages.
  void* const at =
      ::mremap(reinterpret_cast<void*>(address - offset_), 0, page_bytes_, MREMAP_MAYMOVE);
  if (at == MAP_FAILED)
    raise({WSYNC_INTERNAL, "the memory of a version cannot be mapped for Python: mremap: " +
                               std::string(std::strerror(errno))});
  pages_ = at;
  const std::lock_guard lock(memories_mutex());
  all_memories().insert(this);
}

Memory::~Memory() {
  if (pages_ == nullptr) return;
  {
    const std::lock_guard lock(memories_mutex());
    all_memories().erase(this);
  }
  ::munmap(pages_, page_bytes_);
}

bool Memory::replace_pages() noexcept {
  const int protection = writable_ ? PROT_READ | PROT_WRITE : PROT_READ;
  detached_ = ::mmap(pages_, page_bytes_, protection,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  return detached_;
}

void Memory::detach() {
  if (pages_ == nullptr || detached_) return;
  if (!replace_pages())
    raise({WSYNC_INTERNAL, "the memory of a version cannot be taken from Python: mmap: " +
                               std::string(std::strerror(errno))});
}

int Memory::fill_buffer(PyObject* owner, Py_buffer* view, int flags) {
  static std::byte none{};
  void* const data = pages_ == nullptr ? &none : static_cast<std::byte*>(pages_) + offset_;
  return PyBuffer_FillInfo(view, owner, data, static_cast<Py_ssize_t>(bytes_), writable_ ? 0 : 1,
                           flags);
}

namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  return nb::inst_ptr<Memory>(self)->fill_buffer(self, view, flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(slots))
      .def(nb::init<std::uintptr_t, std::size_t, bool>(), nb::arg("address"), nb::arg("bytes"),
           nb::arg("writable"))
      .def("detach", &Memory::detach)
      .def_prop_ro("is_detached", &Memory::is_detached)
      .def("__len__", &Memory::bytes);
}

}  // namespace wsync::python
