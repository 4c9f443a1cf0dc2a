"""The errors that users meet."""

from cloudspot.errors import MAX_MESSAGE, BundleError, CloudspotError


def test_a_message_that_quotes_a_name_of_any_length_keeps_its_beginning_and_its_end():
    text = str(BundleError(f"the code bundle holds {'9' * 100_000!r}, which is not a file"))
    assert len(text) == MAX_MESSAGE
    assert text.startswith("the code bundle holds '999")
    assert text.endswith("999', which is not a file")


def test_other_messages_are_as_they_were_given():
    assert str(CloudspotError("x" * MAX_MESSAGE)) == "x" * MAX_MESSAGE
    assert CloudspotError().args == ()
