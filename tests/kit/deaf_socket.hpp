#pragma once

#include <linux/filter.h>
#include <sys/socket.h>

namespace penstock::test {

/// As where a cable is cut: the kernel drops whatever comes for the socket, and answers nothing. False, if it cannot.
[[nodiscard]] inline bool make_deaf(int socket) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{.len = 1, .filter = &drop};
  return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

}  // namespace penstock::test
