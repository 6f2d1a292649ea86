// How every exported function begins and what it does with misuse.
#pragma once

#include <cstdarg>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

enum class Needs : std::uint8_t {
  kNothing,  // also before cuInit()
  kDriver,   // cuInit() before
  kContext,  // and a current context that has not failed
  kRelease,  // and a current context; after a failure it does its work and returns the failure
};

// Counts the call and looks for what comes before its own work: an injected fault, no cuInit(), a
// forked child, no current context, a context that has failed.
[[nodiscard]] CUresult enter(const char* name, Needs needs);
// The current context of this thread; of a call that enter() let pass with kContext.
[[nodiscard]] std::shared_ptr<Context> current();
// The sticky error behind a kRelease call.
[[nodiscard]] CUresult result_of_release(CUresult own);

template <class Body>
CUresult call(const char* name, Needs needs, Body&& body) {
  const CUresult before = enter(name, needs);
  if (before != CUDA_SUCCESS) return before;
  const CUresult own = body();
  return needs == Needs::kRelease ? result_of_release(own) : own;
}

// An error record "function: what", and the error that the call then returns.
[[nodiscard]] CUresult misuse(const char* name, CUresult error, const std::string& what);
void report(const std::string& what);
void add_count(const char* name);
[[nodiscard]] std::uint64_t count_of(const char* name);
[[nodiscard]] std::string hex(std::uint64_t address);

// What the fault list has for the next call of `name`: counts it.
struct Injected {
  CUresult error = CUDA_SUCCESS;
  bool hang = false;
  bool flip = false;
};
// `alias` counts as well, with a count of its own; may be null.
[[nodiscard]] Injected injected(const char* name, const char* alias = nullptr);

}  // namespace emulated_cuda
