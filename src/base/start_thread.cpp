#include "base/start_thread.hpp"

#include <cstring>
#include <system_error>
#include <utility>

namespace penstock {

Result<std::thread> start_thread(const char* operation, const std::string& what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& refused) {
    return Error(ErrorCode::no_space, operation)
        .reason(std::string("a thread cannot be started: ") + std::strerror(refused.code().value()))
        .object(what)
        .advice(std::string("raise the limit on ") + thread_limits);
  }
}

}  // namespace penstock
