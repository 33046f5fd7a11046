"""Tables, figures and the page: how numbers are shown. It knows rows and pictures, not what they came from."""
