#pragma once

#include "count.hpp"
#include "handle.hpp"
#include "memory.hpp"
#include "runtime.hpp"

#include <penstock/penstock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace penstock::python {

/// penstock.Lease. Has the buffer protocol: the memory stays where it is while a view of it lives.
class Lease {
 public:
  Lease(penstock_lease* lease, void* data, std::uint64_t bytes, bool is_read_only)
      : handle_(lease, "Lease"), data_(data), bytes_(bytes), is_read_only_(is_read_only) {}

  void end();
  /// After an exception, which its arrays may survive, it ends with the last of them.
  void exit(nb::handle type, nb::handle value, nb::handle traceback);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  static int get_buffer(PyObject* self, Py_buffer* view, int flags);
  static void release_buffer(PyObject* self, Py_buffer* view);

 private:
  Handle<penstock_lease, penstock_lease_end> handle_;
  void* data_;
  std::uint64_t bytes_;
  bool is_read_only_;
  std::size_t views_ = 0;  // with the GIL
};

/// penstock.Tensor, of a runtime, which it keeps.
class Tensor {
 public:
  Tensor(std::shared_ptr<Runtime::Owner> runtime, penstock_tensor number, std::string name,
         std::uint64_t bytes)
      : runtime_(std::move(runtime)), number_(number), name_(std::move(name)), bytes_(bytes) {}

  [[nodiscard]] std::unique_ptr<Lease> lease(const std::string& access);
  void write(nb::handle source, const Count& first);
  void read(nb::handle into, const Count& first);
  void prefetch() { call("Tensor.prefetch", penstock_runtime_prefetch); }
  void discard() { call("Tensor.discard", penstock_runtime_discard); }
  void remove() { call("Tensor.remove", penstock_runtime_remove); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  /// As many bytes of `memory` as the tensor has, from `first` on.
  [[nodiscard]] std::byte* part_of(const Memory& memory, std::uint64_t first, const char* function,
                                   const char* argument) const;
  /// Calls `use` with the bytes in memory, without the GIL.
  template <class Action>
  void with_bytes(const char* function, penstock_access access, const Action& use);
  void call(const char* function, penstock_error* (*called)(penstock_runtime*, penstock_tensor));

  std::shared_ptr<Runtime::Owner> runtime_;
  penstock_tensor number_;
  std::string name_;
  std::uint64_t bytes_;
};

}  // namespace penstock::python
