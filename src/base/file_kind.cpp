#include "base/file_kind.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <string>

namespace penstock {

Result<void> check_kind(const char* operation, const std::filesystem::path& file, int descriptor,
                        const FileKind& kind) {
  std::size_t longest = 0;
  for (const std::string_view beginning : kind.beginnings) longest = std::max(longest, beginning.size());
  std::string found(longest, '\0');
  ssize_t count = 0;
  do {
    count = ::pread(descriptor, found.data(), found.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return Error::from_errno(operation, errno).object(file.string());
  found.resize(static_cast<std::size_t>(count));
  for (const std::string_view beginning : kind.beginnings)
    if (found.substr(0, beginning.size()) == beginning.substr(0, found.size())) return ok();
  return Error(ErrorCode::already_exists, operation)
      .object(file.string())
      .reason("another file would be lost")
      .wanted("a name that is free, or that of " + std::string(kind.name))
      .advice("name another file, or remove this one");
}

}  // namespace penstock
