#pragma once

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <memory>
#include <string>

// Handles of the C interface with their owner, and what a call returns.
namespace penstock::test {

template <class T, void (*end)(T*)>
struct Ends {
  void operator()(T* handle) const { end(handle); }
};
template <class T, void (*end)(T*)>
using Owned = std::unique_ptr<T, Ends<T, end>>;
using OwnedError = Owned<penstock_error, penstock_error_free>;

/// That the call was refused with `code`, by a message that contains `text`.
inline void expect(penstock_error* returned, penstock_code code, const std::string& text) {
  const OwnedError error(returned);
  EXPECT_EQ(penstock_error_code(error.get()), code) << penstock_error_message(error.get());
  EXPECT_NE(std::string(penstock_error_message(error.get())).find(text), std::string::npos)
      << text << " in " << penstock_error_message(error.get());
}
inline void succeed(penstock_error* returned) {
  const OwnedError error(returned);
  ASSERT_EQ(error, nullptr) << penstock_error_message(error.get());
}
/// The handle that `call` gives.
template <class Handle, class Call>
Handle made(const Call& call) {
  typename Handle::pointer handle = nullptr;
  succeed(call(&handle));
  return Handle(handle);
}

}  // namespace penstock::test
