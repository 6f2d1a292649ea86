#include "deploy/python/extension/calls.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <string>
#include <unistd.h>

namespace nb = nanobind;

namespace wsync::python {
namespace {

std::atomic<bool> ending = false;
std::atomic<int> waiting = 0;  // scopes of WithoutGil
std::mutex returned_mutex;     // for `returned` alone
std::condition_variable returned;

// The other threads of the parent do not exist in a child, and their scopes never end there.
void forget_other_threads() { waiting = 0; }

}  // namespace

void raise(const Failure& failure) {
  const nb::object error = nb::module_::import_("wsync._errors")
                               .attr("make")(failure.code, failure.sentence, failure.tensor,
                                             failure.expected, failure.found);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void raise_if(const Failure& failure) {
  if (failure) raise(failure);
}

Failure forked(int code, const std::string& what, pid_t home, const std::string& advice) {
  const std::string number = std::to_string(home);
  return {code, "this " + what + " was made in process " + number + ", and the calling process " +
                    std::to_string(::getpid()) +
                    " has been forked from it, as workers of a DataLoader and of multiprocessing "
                    "are: use it in process " +
                    number + " alone; " + advice};
}

WithoutGil::WithoutGil() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &forget_other_threads);
  (void)registered;
  if (ending) raise({kClosed, "the interpreter is ending, so this call is refused"});
  ++waiting;
  state_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  PyEval_RestoreThread(state_);
  --waiting;
  if (ending) {
    const std::lock_guard lock(returned_mutex);
    returned.notify_all();
  }
}

WithoutSignals::WithoutSignals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

WithoutSignals::~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

bool is_ending() { return ending; }

bool end_calls(double limit_s) {
  ending = true;
  if (waiting == 0) return true;
  PyThreadState* const state = PyEval_SaveThread();
  bool all = false;
  {
    std::unique_lock lock(returned_mutex);
    all = returned.wait_for(lock, std::chrono::duration<double>(limit_s),
                            [] { return waiting.load() == 0; });
  }
  PyEval_RestoreThread(state);
  return all;
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace wsync::python
