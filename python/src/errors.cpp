#include "errors.hpp"

#include <nanobind/stl/string.h>
#include <memory>

namespace penstock::python {

namespace {

/// Held as long as the process lives: an import fails while the interpreter ends.
PyObject* exception_of = nullptr;

/// Names of files need not be UTF-8.
nb::object text_of(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

[[noreturn]] void raise(penstock_code code, const std::string& message, const nb::dict& fields) {
  const nb::object exception = nb::handle(exception_of)(code, text_of(message), **fields);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void set_exceptions(nb::object function) {
  exception_of = function.release().ptr();
}

void check(penstock_error* returned) {
  if (returned == nullptr) return;
  const std::unique_ptr<penstock_error, void (*)(penstock_error*)> error(returned, penstock_error_free);
  nb::dict fields;
  const auto add = [&](const char* name, penstock_error_field field) {
    fields[name] = text_of(penstock_error_text(error.get(), field));
  };
  add("operation", PENSTOCK_ERROR_OPERATION);
  add("object", PENSTOCK_ERROR_OBJECT);
  add("reason", PENSTOCK_ERROR_REASON);
  add("wanted", PENSTOCK_ERROR_WANTED);
  add("got", PENSTOCK_ERROR_GOT);
  add("where", PENSTOCK_ERROR_WHERE);
  add("advice", PENSTOCK_ERROR_ADVICE);
  nb::list notes;
  for (std::size_t i = 0; const char* note = penstock_error_note(error.get(), i); ++i)
    notes.append(text_of(note));
  fields["notes"] = nb::tuple(notes);
  if (const std::int64_t offset = penstock_error_offset(error.get()); offset >= 0) fields["offset"] = offset;
  fields["os_error"] = penstock_error_os_error(error.get());
  raise(penstock_error_code(error.get()), penstock_error_message(error.get()), fields);
}

void refuse(const Refusal& refusal) {
  nb::dict fields;
  std::string message = refusal.reason + ": " + refusal.argument;
  const auto add = [&](const char* name, const char* label, const std::string& text) {
    fields[name] = text_of(text);
    if (!text.empty()) message += label + text;
  };
  add("wanted", ", wanted ", refusal.wanted);
  add("got", ", got ", refusal.got);
  message += std::string(" [") + refusal.function + "]";
  add("advice", "\n  try     ", refusal.advice);
  fields["operation"] = std::string(refusal.function);
  fields["object"] = std::string(refusal.argument);
  fields["reason"] = text_of(refusal.reason);
  raise(refusal.code, message, fields);
}

nb::list to_list(penstock_lines* lines) {
  const std::unique_ptr<penstock_lines, void (*)(penstock_lines*)> owned(lines, penstock_lines_free);
  nb::list texts;
  for (std::size_t i = 0; i < penstock_lines_count(lines); ++i)
    texts.append(text_of(penstock_lines_get(lines, i)));
  return texts;
}

nb::str to_text(penstock_lines* lines) {
  const std::unique_ptr<penstock_lines, void (*)(penstock_lines*)> owned(lines, penstock_lines_free);
  std::string text;
  for (std::size_t i = 0; i < penstock_lines_count(lines); ++i)
    text += std::string(penstock_lines_get(lines, i)) + '\n';
  return nb::str(text_of(text));
}

}  // namespace penstock::python
