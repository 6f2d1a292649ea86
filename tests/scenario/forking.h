// Children that a program of a scenario makes, and what they say on its standard output.
#pragma once

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace wsync {

inline void say(const nlohmann::json& event) { std::cout << event.dump() << std::endl; }

// Does nothing until it is killed. `again`: a child of the child, which has ended. `run`: another
// program; `spawn`: likewise, by posix_spawn.
inline void make_idle_child(const std::string& how) {
  std::string program = "/bin/sleep";
  std::string time = "1000";
  char* arguments[] = {program.data(), time.data(), nullptr};
  pid_t pid = 0;
  if (how == "spawn") {
    if (::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0)
      std::abort();
    return say({{"event", "forked"}, {"pid", pid}});
  }
  pid = ::fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    if (how == "again" && ::fork() != 0) ::_exit(0);
    say({{"event", "forked"}, {"pid", ::getpid()}});
    if (how == "run") ::execv(program.c_str(), arguments);
    for (;;) ::pause();
  }
  if (how == "again") ::waitpid(pid, nullptr, 0);
}

// A child of which no library is told, because no fork handler runs: it has every descriptor of its
// parent, and does nothing until it is killed.
inline void make_unnoticed_child() {
  const long pid = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid < 0) std::abort();
  while (pid == 0) ::pause();
  say({{"event", "forked"}, {"pid", pid}});
}

// The child does `work` and ends as a program does: exit handlers and static destructors run.
template <class Work>
void in_child(Work work) {
  const pid_t pid = ::fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    work();
    std::exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  say({{"event", "child_ended"}, {"status", status}});
}

}  // namespace wsync
