#include <penstock/c/error.h>

#include "c/handles.hpp"

#include <array>
#include <limits>

/// With every text that C may ask for.
struct penstock_error {
  penstock::ErrorCode code;
  int os_error = 0;
  std::string operation, message;
  penstock::Error::Fields fields;
};

namespace penstock::c {

namespace {

// The numbers of C are one more, because 0 is none.
constexpr penstock_code number_of(ErrorCode code) {
  return static_cast<penstock_code>(code) + 1;
}
static_assert(number_of(ErrorCode::invalid_argument) == PENSTOCK_INVALID_ARGUMENT);
static_assert(number_of(ErrorCode::invalid_config) == PENSTOCK_INVALID_CONFIG);
static_assert(number_of(ErrorCode::unsupported) == PENSTOCK_UNSUPPORTED);
static_assert(number_of(ErrorCode::would_block) == PENSTOCK_WOULD_BLOCK);
static_assert(number_of(ErrorCode::budget_too_small) == PENSTOCK_BUDGET_TOO_SMALL);
static_assert(number_of(ErrorCode::no_space) == PENSTOCK_NO_SPACE);
static_assert(number_of(ErrorCode::permission) == PENSTOCK_PERMISSION);
static_assert(number_of(ErrorCode::not_found) == PENSTOCK_NOT_FOUND);
static_assert(number_of(ErrorCode::already_exists) == PENSTOCK_ALREADY_EXISTS);
static_assert(number_of(ErrorCode::in_use) == PENSTOCK_IN_USE);
static_assert(number_of(ErrorCode::io) == PENSTOCK_IO);
static_assert(number_of(ErrorCode::truncated) == PENSTOCK_TRUNCATED);
static_assert(number_of(ErrorCode::corrupted) == PENSTOCK_CORRUPTED);
static_assert(number_of(ErrorCode::non_finite) == PENSTOCK_NON_FINITE);
static_assert(number_of(ErrorCode::deadline_exceeded) == PENSTOCK_DEADLINE_EXCEEDED);
static_assert(number_of(ErrorCode::peer_failed) == PENSTOCK_PEER_FAILED);
static_assert(number_of(ErrorCode::interrupted) == PENSTOCK_INTERRUPTED);
static_assert(number_of(ErrorCode::failed_state) == PENSTOCK_FAILED_STATE);

/// Made when the library is loaded: for the error there is no memory then.
penstock_error no_memory{.code = ErrorCode::no_space,
                         .operation = "penstock",
                         .message = "no space: the host has no memory left [penstock]",
                         .fields = {.reason = "the host has no memory left"}};

penstock_error* made(const Error& error) {
  return new penstock_error{.code = error.code(),
                            .os_error = error.os_error(),
                            .operation = error.operation(),
                            .message = error.message(),
                            .fields = error.fields()};
}

}  // namespace

penstock_error* to_c(const Error& error) noexcept {
  try {
    return made(error);
  } catch (...) {
    return &no_memory;
  }
}

penstock_error* to_c_from_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return &no_memory;
  } catch (const std::exception& exception) {
    try {
      return made(Error(ErrorCode::failed_state, function)
                      .reason(std::string("the library has thrown an exception: ") + exception.what())
                      .advice("report it: this is a defect of Penstock"));
    } catch (...) {
      return &no_memory;
    }
  } catch (...) {
    return &no_memory;
  }
}

}  // namespace penstock::c

penstock_code penstock_error_code(const penstock_error* error) {
  return error == nullptr ? PENSTOCK_OK : penstock::c::number_of(error->code);
}

const char* penstock_error_code_name(penstock_code code) {
  if (code == PENSTOCK_OK) return "ok";
  if (code < PENSTOCK_OK || code > PENSTOCK_FAILED_STATE) return "unknown";
  return to_string(static_cast<penstock::ErrorCode>(code - 1)).data();  // a literal, which ends with 0
}

const char* penstock_error_message(const penstock_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}

const char* penstock_error_text(const penstock_error* error, penstock_error_field field) {
  if (error == nullptr) return "";
  const auto& fields = error->fields;
  switch (field) {
    case PENSTOCK_ERROR_OPERATION: return error->operation.c_str();
    case PENSTOCK_ERROR_OBJECT: return fields.object.c_str();
    case PENSTOCK_ERROR_REASON: return fields.reason.c_str();
    case PENSTOCK_ERROR_WANTED: return fields.wanted.c_str();
    case PENSTOCK_ERROR_GOT: return fields.got.c_str();
    case PENSTOCK_ERROR_WHERE: return fields.where.c_str();
    case PENSTOCK_ERROR_ADVICE: return fields.advice.c_str();
    default: return "";
  }
}

const char* penstock_error_note(const penstock_error* error, std::size_t index) {
  if (error == nullptr || index >= error->fields.notes.size()) return nullptr;
  return error->fields.notes[index].c_str();
}

std::int64_t penstock_error_offset(const penstock_error* error) {
  if (error == nullptr || !error->fields.offset) return -1;
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(error->fields.offset->value(), most));
}

int penstock_error_os_error(const penstock_error* error) {
  return error == nullptr ? 0 : error->os_error;
}

void penstock_error_free(penstock_error* error) {
  if (error != &penstock::c::no_memory) delete error;
}
