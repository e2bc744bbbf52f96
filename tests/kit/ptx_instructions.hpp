#pragma once

#include "kit/ptx_shared_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace penstock::test::ptx {

/// The global memory of a kernel.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// Where the `size` bytes of an address are, which is a multiple of `size`: called once for each access. Throws
  /// IllegalAccess if they are not memory of the kernel.
  [[nodiscard]] virtual std::byte* at(std::uint64_t address, std::size_t size) const = 0;
};

/// A register; in brackets, the address in the register plus an offset in bytes.
struct Operand {
  std::size_t number = 0;
  std::uint64_t offset = 0;
};

/// The registers of one thread hold bits; each instruction interprets them by its type. A constant is a register that
/// is never written.
struct Thread {
  std::vector<std::uint64_t> registers;
  std::size_t next = 0;  // instruction
  const Memory* memory = nullptr;
  SharedMemory* shared = nullptr;
  std::uint32_t number = 0;  // in its block

  template <class T>
  [[nodiscard]] T get(const Operand& operand) const {
    T value;
    std::memcpy(&value, &registers[operand.number], sizeof value);
    return value;
  }
  template <class T>
  void set(const Operand& operand, T value) {
    registers[operand.number] = 0;
    std::memcpy(&registers[operand.number], &value, sizeof value);
  }
  /// A vector of several values is one access of their size.
  [[nodiscard]] std::byte* global(const Operand& operand, std::size_t size) const {
    const std::uint64_t address = registers[operand.number] + operand.offset;
    if (address % size != 0) throw MisalignedAccess();
    return memory->at(address, size);
  }
  [[nodiscard]] const std::byte* shared_read(const Operand& operand, std::size_t size) const {
    return shared->read(registers[operand.number] + operand.offset, size, number);
  }
  [[nodiscard]] std::byte* shared_write(const Operand& operand, std::size_t size) const {
    return shared->write(registers[operand.number] + operand.offset, size, number);
  }
  /// Parameters are host memory.
  [[nodiscard]] const std::byte* parameter(const Operand& operand) const {
    return reinterpret_cast<const std::byte*>(registers[operand.number] + operand.offset);
  }
};

using Operands = std::vector<Operand>;
using Action = void (*)(Thread&, const Operands&);
using WarpAction = void (*)(std::span<Thread>, const Operands&);

/// The threads that execute an instruction together.
enum class Group : std::uint8_t {
  thread,
  warp,   ///< a shuffle, or a load or product of matrices
  block,  ///< a barrier
};

struct Operation {
  Action act;  ///< null if threads execute it together
  std::size_t operands;
  Group group = Group::thread;
  WarpAction act_together = nullptr;  ///< of a warp
};

/// Which floating-point instructions a kernel may contain.
enum class Arithmetic : std::uint8_t {
  /// Only those with .rn and without .ftz and .approx, which round once to nearest even and are not fused. A kernel
  /// compiled to others would not have the CPU's bits, and is refused.
  exact,
  /// Also those without .rn, which a GPU may fuse and which round once here; fused ones; and those with .approx, which
  /// are rounded from double here, so that a GPU's results differ in the last bits.
  approximate,
};

/// The operation of an instruction by its name, followed by " {}" if the first operand is a vector and by " ,{}" if the
/// last one is.
///
/// Throws std::runtime_error for a name that is not known here, or not with this arithmetic.
[[nodiscard]] const Operation& operation(const std::string& name, Arithmetic arithmetic);

}  // namespace penstock::test::ptx
