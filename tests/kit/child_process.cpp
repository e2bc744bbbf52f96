#include "kit/child_process.hpp"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

namespace penstock::test {

int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

namespace {

/// A filter for the calling thread. The result of the system call: negative when seccomp is not available.
long install(std::span<sock_filter> filter, unsigned flags) {
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/// Answers the calls that a filter reports: the first `made` are made, and the next `count` fail with `error`.
void answer_calls(int listener, int error, unsigned count, unsigned made) {
  seccomp_notif call{};
  while (true) {
    call = {};
    if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
      // ENOENT: the call was interrupted, for example by work of io_uring, and is made again.
      if (errno == EINTR || errno == ENOENT) continue;
      return;
    }
    seccomp_notif_resp answer{};
    answer.id = call.id;
    if (made > 0 || count == 0) {
      made -= std::min(made, 1u);
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    } else {
      --count;
      answer.error = -error;
    }
    (void)::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
}

/// Reports system call `number` to a listener, whose descriptor it returns, and waits for its answer. Negative when
/// seccomp is not available.
long report_system_call(long number) {
  std::array<sock_filter, 4> filter = {{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(number)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  return install(filter, SECCOMP_FILTER_FLAG_NEW_LISTENER);
}

}  // namespace

bool refuse_system_call(long number, int error) {
  std::array<sock_filter, 4> filter = {{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(number)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  return install(filter, 0) == 0;
}

bool refuse_system_call_with(long number, unsigned argument, std::uint32_t mask, int error) {
  const auto offset =
      static_cast<std::uint32_t>(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t));
  std::array<sock_filter, 7> filter = {{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 4, static_cast<std::uint32_t>(number)},
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offset},
      {BPF_ALU | BPF_AND | BPF_K, 0, 0, mask},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, mask},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  return install(filter, 0) == 0;
}

bool refuse_system_call_times(long number, int error, unsigned count, unsigned made) {
  // Started before the filter, which therefore does not concern it.
  static std::atomic<int> listener{-1};
  std::thread([error, count, made] {
    while (listener.load() == -1) std::this_thread::yield();
    if (listener.load() >= 0) answer_calls(listener.load(), error, count, made);
  }).detach();
  const long result = report_system_call(number);
  listener.store(result >= 0 ? static_cast<int>(result) : -2);
  return result >= 0;
}

bool hang_system_call(long number) {
  return report_system_call(number) >= 0;  // nobody reads the reports
}

bool limit_locked_memory(unsigned long bytes) {
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> held{};
  if (::syscall(SYS_capget, &header, held.data()) != 0) return false;
  for (auto* set : {&held[0].effective, &held[0].permitted}) *set &= ~(1u << CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, held.data()) == 0;
}

}  // namespace penstock::test
